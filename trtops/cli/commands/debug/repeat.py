"""Run a command again and again, and sort the files that it leaves into good/ and bad/."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Asked, UsageError
from trtops.cli.iterations import Iterations
from trtops.cli.logs import say

if TYPE_CHECKING:
    from trtops.ops.evaluation.command import CommandCheck
    from trtops.ops.search.repeat import RepeatConfig, RepeatStep

GROUPS = (groups.UNTIL, groups.SORTING, groups.ITERATING, groups.REPLAY, groups.CHECK)
EXAMPLES = (
    "trtops debug repeat --until 5 --artifacts outputs.json --check trtops run model.onnx --trt --save-outputs outputs.json",
)


@dataclass(frozen=True)
class Plan:
    """What to repeat.

    Attributes:
        check: The command; None asks at the terminal.
        config: The op's config.
        makes: Whether something is made in each iteration, which may fail by itself.
        exit_on_bad: Whether a bad verdict is exit code 1.
    """

    check: CommandCheck | None
    config: RepeatConfig
    makes: bool = False
    exit_on_bad: bool = False


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(check_of(args, "-"), repeat_config(args, args.iter_artifact), exit_on_bad=bool(args.exit_on_bad))


def check_of(args: Asked, artifact: str) -> CommandCheck | None:
    """The command that evaluates, if there is one; it reads what was made by itself."""
    if not args.check:
        return None
    check = configs.command_check(args, artifact, "{engine}")
    words = tuple(word.replace("{engine}", artifact).replace("{model}", artifact) for word in check.command)
    return replace(check, command=words, artifact=artifact)


def repeat_config(args: Asked, intermediate: str | None) -> RepeatConfig:
    """When to stop, and what to keep."""
    if args.until is None:
        raise UsageError("say when to stop: --until good, --until bad, or --until N")
    return ops.RepeatConfig(
        until=args.until,
        artifacts=tuple(args.artifacts or ()),
        folder=args.art_dir,
        intermediate=intermediate,
        keep_intermediate=bool(args.no_remove_intermediate),
        info=args.iter_info,
        load_replay=args.load_debug_replay,
        save_replay=args.save_debug_replay,
        show="all" if args.show_output else "none" if args.hide_fail_output else "failing",
    )


def execute(plan: Plan) -> int:
    """Repeat, and print."""
    return carry_out(plan, lambda number: None)


def carry_out(plan: Plan, make: Any) -> int:
    """Repeat with something made in each iteration, and print."""
    asked = (lambda number: ask("Did this iteration")) if plan.check is None and sys.stdin.isatty() else None
    if plan.check is None and asked is None and plan.makes:
        say(
            "Nothing evaluates the engines, so each that can be built counts as good. Evaluate them by --check COMMAND."
        )
        asked = lambda number: True  # noqa: E731
    iterations = Iterations()

    def say_step(step: RepeatStep) -> None:
        if step.output:
            say(step.output.rstrip())
        say(f"iteration {step.number}: {step.verdict}{f' ({step.detail})' if step.detail else ''}")
        iterations.ended(step.verdict == "good")

    result = ops.repeat(make, plan.check, plan.config, ask=asked, progress=say_step)
    iterations.tell_all()
    say(result.text())
    return 1 if plan.exit_on_bad and result.verdict != "good" else 0


def ask(question: str) -> bool:
    """Let the person at the terminal evaluate; ``Did this`` asks whether it passed or failed."""
    prompt = f">>> {question} [p]ass or [f]ail? "
    while True:
        answer = input(prompt).strip().lower()
        if answer[:1] in ("p", "f"):
            return answer[0] == "p"
        prompt = ">>> Please choose either: 'p' or 'f': "
