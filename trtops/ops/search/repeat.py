"""Repeat: make something, check it with a command, and sort the files left behind into good and bad."""

import itertools
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trtops import errors
from trtops.ops.arguments import checked_arguments
from trtops.ops.search.command import CommandCheck, run_group
from trtops.ops.search.delta import IterationContext, load_replay, save_replay
from trtops.record import Config, Record, setting
from trtops.verdict import Verdict

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RepeatConfig(Config):
    """The end of the repetition, and the files to keep.

    Attributes:
        until: Stop after this number of iterations, or after the first good or bad one.
        artifacts: Files to move to ``good/`` or ``bad/`` below ``folder`` after each iteration, with time and iteration
            added to their names.
        folder: Where these folders are.
        intermediate: The file that the command reads, if it is to be removed at the end.
        info: File for the iteration's number, as JSON, for the command to read.
        show: Whose output is kept: that of ``all`` checks, of ``failing`` ones, or of ``none``.
        load_replay: A debug replay of trtops or Polygraphy, whose iterations are not run again.
        save_replay: File for a debug replay, written after each iteration.
    """

    until: int | Literal["good", "bad"] = field(metadata={"least": 1})
    artifacts: tuple[str, ...] = setting((), file="writes")
    folder: str = setting("trtops_artifacts", file="writes")
    intermediate: str | None = setting(None, file="writes")
    info: str | None = setting(None, file="writes")
    show: Literal["all", "failing", "none"] = "failing"
    load_replay: str | None = setting(None, file="reads")
    save_replay: str | None = setting(None, file="writes", continues="load_replay")


@dataclass(frozen=True, kw_only=True)
class RepeatStep(Record):
    """One iteration. ``error`` is another failure than the one meant; ``output`` is empty if it is not to be shown."""

    number: int
    verdict: Verdict
    detail: str = ""
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class RepeatResult(Record):
    """All iterations."""

    steps: tuple[RepeatStep, ...]

    @property
    def verdict(self) -> Verdict:
        """``good`` if every iteration is."""
        return "good" if self.count("good") == len(self.steps) else "bad"

    def text(self) -> str:
        """How many passed."""
        return f"{self.count('good')} of {len(self.steps)} iterations passed"

    def count(self, verdict: str) -> int:
        """Number of iterations with a verdict."""
        return sum(step.verdict == verdict for step in self.steps)


@checked_arguments
def repeat(
    make: Callable[[int], object],
    check: CommandCheck | None,
    config: RepeatConfig,
    *,
    ask: Callable[[int], bool] | None = None,
    progress: Callable[[RepeatStep], None] | None = None,
) -> RepeatResult:
    """Make and check something until the config says to stop.

    ``make`` makes what is checked, from the iteration's number, for the ``check`` to read; without one, ``ask`` says
    whether an iteration is good. Errors of a back end give the verdict ``error``, except for those that every iteration
    would meet. ``progress`` is called after each iteration.
    """
    if check is None and ask is None:
        raise errors.ConfigError("There is nothing to evaluate by. Add a check: --check <command>.")
    recorded = list(load_replay(config.load_replay).values()) if config.load_replay is not None else []
    replay: dict[str, IterationContext] = {}
    steps: list[RepeatStep] = []
    try:
        for number in itertools.count():
            last = "" if not steps else "good" if steps[-1].verdict == "good" else "bad"
            if config.until in (number, last):
                break
            if number < len(recorded):
                verdict: Verdict = "good" if recorded[number].success else "bad"
                step = RepeatStep(number=number, verdict=verdict, detail="from the replay")
            else:
                step = iterate(number, make, check, config, ask)
            steps.append(step)
            # After each iteration, so that a search that is killed can resume.
            if config.save_replay is not None:
                replay[f"_N{number}"] = IterationContext({}, {"iteration": number}, step.verdict == "good")
                save_replay(replay, config.save_replay)
            if progress is not None:
                progress(step)
    finally:
        remove_files(config)
    return RepeatResult(steps=tuple(steps))


def remove_files(config: RepeatConfig) -> None:
    """Remove the temporary files of a search."""
    if config.intermediate is not None:
        for path in (config.intermediate, f"{config.intermediate}.data"):  # a large model's weights
            Path(path).unlink(missing_ok=True)
    if config.info is not None:
        Path(config.info).unlink(missing_ok=True)


def iterate(
    number: int,
    make: Callable[[int], object],
    check: CommandCheck | None,
    config: RepeatConfig,
    ask: Callable[[int], bool] | None = None,
) -> RepeatStep:
    """Run one iteration: make, check, sort; see :func:`repeat`."""
    if config.info is not None:
        Path(config.info).write_text(json.dumps({"iteration": number}), encoding="utf-8")
    verdict: Verdict = "error"
    detail = printed = ""
    try:
        make(number)
    except (errors.BackendUnavailableError, errors.UnsupportedFeatureError):  # every iteration would fail
        raise
    except errors.BackendError as exc:
        detail = str(exc)
    else:
        if check is None:
            assert ask is not None
            verdict = "good" if ask(number) else "bad"
        else:
            code, printed = run_group(check.command, check.timeout_seconds)
            outcome = check.evaluate(code, printed)
            verdict = "good" if outcome.verdict == "pass" else "bad" if outcome.verdict == "fail" else "error"
            detail = outcome.detail.split("\n")[0]
    # The time keeps files of an earlier search from being replaced.
    label = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_N{number}"
    sort_artifacts(config.artifacts, config.folder, good=verdict == "good", label=label)
    shown = config.show == "all" or (config.show == "failing" and verdict != "good")
    return RepeatStep(number=number, verdict=verdict, detail=detail, output=printed if shown else "")


def sort_artifacts(names: Iterable[str], folder: str | Path, *, good: bool, label: str) -> None:
    """Move the files left by a check to ``good/`` or ``bad/``, with a label in their names; skip missing ones."""
    target_folder = Path(folder) / ("good" if good else "bad")
    for path in map(Path, names):
        if not path.exists():
            log.warning("%s was not there after %s; it is skipped", path, label)
            continue
        target_folder.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target_folder / f"{path.stem}_{label}{path.suffix}")
