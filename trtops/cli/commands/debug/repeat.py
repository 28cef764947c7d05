"""The command ``trtops debug repeat``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Options, UsageError
from trtops.cli.jobs import Job, command
from trtops.cli.logs import log_line, say
from trtops.logger import G_LOGGER

if TYPE_CHECKING:
    from trtops.ops.evaluation.command import CommandCheck
    from trtops.ops.search.repeat import RepeatConfig, RepeatStep


@command(
    groups.UNTIL,
    groups.SORTING,
    groups.ITERATING,
    groups.REPLAY,
    groups.CHECK,
    examples=(
        "trtops debug repeat --until 5 --artifacts outputs.json --check trtops run model.onnx --trt --save-outputs "
        "outputs.json",
    ),
)
def repeat(args: Options) -> Job:
    """Run a command repeatedly, and sort the files that it leaves into good/ and bad/."""
    check, config = check_of(args, "-"), repeat_config(args, args.iter_artifact)
    return repeat_job(check, config, exit_on_bad=bool(args.exit_on_bad))


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


def repeat_job(
    check: CommandCheck | None, config: RepeatConfig, make: Callable[[int], None] | None = None, *, exit_on_bad: bool
) -> Job:
    """Return the job that repeats, and prints each step.

    Args:
        check: The command that checks; None asks at the terminal.
        config: The op's config.
        make: Makes what is checked in each iteration, given its number.
        exit_on_bad: Whether a bad verdict is exit code 1.
    """

    def run() -> int:
        asked = (lambda number: ask("Did this iteration")) if check is None and sys.stdin.isatty() else None
        if check is None and asked is None and make is not None:
            say("Nothing checks the engines, so each that can be built is good. Check them with --check COMMAND.")
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

    return run


class Iterations:
    """Reports iterations as Polygraphy does: the verdict and time of each, and a summary."""

    def __init__(self) -> None:
        """Start the clock of the first iteration."""
        self._verdicts: list[bool] = []
        self._start = time.perf_counter()

    def ended(self, passed: bool) -> None:
        """Log the outcome of an iteration; the next starts."""
        self._verdicts.append(passed)
        now = time.perf_counter()
        verdict, severity = ("PASSED", G_LOGGER.FINISH) if passed else ("FAILED", G_LOGGER.ERROR)
        log_line(f"{verdict} | Iteration {len(self._verdicts)} | Duration {now - self._start:.3f}s", severity)
        self._start = now

    def log_summary(self) -> None:
        """Log how many iterations there were, and how many passed; nothing if there were none."""
        total, passed = len(self._verdicts), sum(self._verdicts)
        if total:
            rate = float(passed) * 100 / float(total)
            log_line(f"Finished {total} iteration(s) | Passed: {passed}/{total} | Pass Rate: {rate}%", G_LOGGER.FINISH)


def ask(question: str) -> bool:
    """Ask the person at the terminal whether it passed or failed."""
    prompt = f">>> {question} [p]ass or [f]ail? "
    while True:
        answer = input(prompt).strip().lower()
        if answer[:1] in ("p", "f"):
            return answer[0] == "p"
        prompt = ">>> Please choose either: 'p' or 'f': "
