"""Run a command repeatedly, and sort the files that it leaves into good/ and bad/."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Options, UsageError
from trtops.cli.iterations import Iterations
from trtops.cli.jobs import Job
from trtops.cli.logs import say

if TYPE_CHECKING:
    from trtops.ops.evaluation.command import CommandCheck
    from trtops.ops.search.repeat import RepeatConfig, RepeatStep

GROUPS = (groups.UNTIL, groups.SORTING, groups.ITERATING, groups.REPLAY, groups.CHECK)
EXAMPLES = (
    "trtops debug repeat --until 5 --artifacts outputs.json --check trtops run model.onnx --trt --save-outputs "
    "outputs.json",
)


def plan(args: Options) -> Job:
    """Return the job."""
    check, config = check_of(args, "-"), repeat_config(args, args.iter_artifact)
    return Job(call=repeat, args=(check, config), kwargs={"exit_on_bad": bool(args.exit_on_bad)})


def check_of(args: Options, artifact: str) -> CommandCheck | None:
    """Return the command that checks, if there is one; it reads the artifact."""
    if not args.check:
        return None
    check = configs.command_check(args, artifact, "{engine}")
    words = tuple(word.replace("{engine}", artifact).replace("{model}", artifact) for word in check.command)
    return replace(check, command=words, artifact=artifact)


def repeat_config(args: Options, intermediate: str | None) -> RepeatConfig:
    """Return when to stop, and what to keep."""
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


def repeat(check: CommandCheck | None, config: RepeatConfig, make: Any = None, *, exit_on_bad: bool) -> int:
    """Repeat, print each step, and return the exit code.

    Args:
        check: The command that checks; None asks at the terminal.
        config: The op's config.
        make: Makes what is checked in each iteration, given its number.
        exit_on_bad: Whether a bad verdict is exit code 1.
    """
    asked = (lambda number: ask("Did this iteration")) if check is None and sys.stdin.isatty() else None
    if check is None and asked is None and make is not None:
        say("Nothing checks the engines, so each that can be built counts as good. Check them with --check COMMAND.")
        asked = lambda number: True  # noqa: E731
    iterations = Iterations()

    def say_step(step: RepeatStep) -> None:
        if step.output:
            say(step.output.rstrip())
        say(f"iteration {step.number}: {step.verdict}{f' ({step.detail})' if step.detail else ''}")
        iterations.ended(step.verdict == "good")

    result = ops.repeat(make or (lambda number: None), check, config, ask=asked, progress=say_step)
    iterations.log_summary()
    say(result.text())
    return 1 if exit_on_bad and result.verdict != "good" else 0


def ask(question: str) -> bool:
    """Ask the person at the terminal whether it passed or failed."""
    prompt = f">>> {question} [p]ass or [f]ail? "
    while True:
        answer = input(prompt).strip().lower()
        if answer[:1] in ("p", "f"):
            return answer[0] == "p"
        prompt = ">>> Please choose either: 'p' or 'f': "
