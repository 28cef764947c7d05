"""Repeat: make something, let a command evaluate it, and sort what it left into good and bad, again and again."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtops import errors
from trtops.ops.evaluation.command import CommandCheck, run_group
from trtops.ops.evaluation.submodel import CheckOutcome
from trtops.ops.result import OpResult
from trtops.ops.search.replays import IterationContext, load_replay, save_replay
from trtops.record import Record
from trtops.verdict import Verdict

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RepeatConfig(Record):
    """When to stop, and what to keep.

    Attributes:
        until: Stop after so many, or after the first good or bad one.
        artifacts: Files to sort after each iteration. They are moved to ``good/`` and ``bad/`` below ``folder``, their
            names with the time and the iteration in them.
        folder: Where those are.
        intermediate: The file that the command reads, removed in the end unless ``keep_intermediate``.
        keep_intermediate: Whether it stays.
        info: Where the iteration's number is written for the command, as JSON.
        show: Whose output is shown: of every check, of the failing ones, or of none.
        load_replay: A debug replay of trtops or Polygraphy: iterations that it has answers for are not run.
        save_replay: Where to write one, anew after each iteration.
    """

    until: int | Literal["good", "bad"]
    artifacts: tuple[str, ...] = ()
    folder: str = "trtops_artifacts"
    intermediate: str | None = None
    keep_intermediate: bool = False
    info: str | None = None
    show: Literal["all", "failing", "none"] = "failing"
    load_replay: str | None = None
    save_replay: str | None = None


@dataclass(frozen=True, kw_only=True)
class RepeatStep(Record):
    """One iteration.

    Attributes:
        number: Counts from 0.
        verdict: ``good``, ``bad`` or ``error``: another failure than the one that is meant, sorted with the bad ones.
        detail: Why it is not good.
        output: What the command printed, as far as it is to be shown.
    """

    number: int
    verdict: Literal["good", "bad", "error"]
    detail: str = ""
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class RepeatResult(OpResult):
    """What came out.

    Attributes:
        steps: Every iteration.
    """

    steps: tuple[RepeatStep, ...]

    @property
    def verdict(self) -> Verdict:
        """``good`` if every iteration is."""
        return "good" if self.count("good") == len(self.steps) else "bad"

    def body(self) -> Iterator[str]:
        """How many passed, and why the others did not."""
        yield self.text()
        failed = [step for step in self.steps if step.verdict != "good"]
        yield from ("", *(f"- iteration {step.number}: {step.verdict} {step.detail}".rstrip() for step in failed))

    def text(self) -> str:
        """How many passed, in a sentence."""
        return f"{self.count('good')} of {len(self.steps)} iterations passed"

    def count(self, verdict: str) -> int:
        """How many iterations came to a verdict."""
        return sum(step.verdict == verdict for step in self.steps)


def repeat(
    make: Callable[[int], object],
    check: CommandCheck | None,
    config: RepeatConfig,
    *,
    ask: Callable[[int], bool] | None = None,
    progress: Callable[[RepeatStep], None] | None = None,
) -> RepeatResult:
    """Iterate.

    Args:
        make: Makes what is evaluated; gets the iteration's number. What it raises of a back end's errors is a verdict,
            ``error``, unless it says that no such thing can be made here.
        check: The command that evaluates; it reads a file that ``make`` wrote.
        config: When to stop, and what to keep.
        ask: Evaluates in place of a command: whether it is good.
        progress: Called after each iteration.

    Raises:
        ConfigError: If there is neither a check nor somebody to ask, or the check cannot be run.
    """
    if check is None and ask is None:
        raise errors.ConfigError("There is nothing to evaluate by. Give a check: --check <command>.")
    steps: list[RepeatStep] = []
    answers = _replayed_steps(config)
    try:
        for number in _iteration_numbers(config, steps):
            step = answers.get(number) or iterate(number, make, check, config, ask)
            steps.append(step)
            _save_steps(config, steps)
            if progress is not None:
                progress(step)
    finally:
        finish(config)
    return RepeatResult(title="repeat", steps=tuple(steps))


def finish(config: RepeatConfig) -> None:
    """Remove what is not to stay."""
    if config.intermediate is not None and not config.keep_intermediate:
        Path(config.intermediate).unlink(missing_ok=True)
    if config.info is not None:
        Path(config.info).unlink(missing_ok=True)


def _replayed_steps(config: RepeatConfig) -> dict[int, RepeatStep]:
    """The iterations of an earlier run, by number."""
    if config.load_replay is None:
        return {}
    return {
        number: RepeatStep(number=number, verdict="good" if context.success else "bad", detail="from the replay")
        for number, context in enumerate(load_replay(Path(config.load_replay)).values())
    }


def _save_steps(config: RepeatConfig, steps: Sequence[RepeatStep]) -> None:
    if config.save_replay is None:
        return
    replay = {
        f"_N{step.number}": IterationContext({}, {"iteration": step.number}, step.verdict == "good") for step in steps
    }
    save_replay(replay, config.save_replay)


def _iteration_numbers(config: RepeatConfig, steps: list[RepeatStep]) -> Iterator[int]:
    for number in itertools.count():
        last = steps[-1].verdict if steps else None
        found_good, found_bad = last == "good", last in ("bad", "error")
        if number == config.until or (config.until == "good" and found_good) or (config.until == "bad" and found_bad):
            return
        yield number


def iterate(
    number: int,
    make: Callable[[int], object],
    check: CommandCheck | None,
    config: RepeatConfig,
    ask: Callable[[int], bool] | None = None,
) -> RepeatStep:
    """One iteration: make, evaluate, sort; see :func:`repeat`."""
    step = _make_and_evaluate(number, make, check, config, ask)
    label = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_N{number}"
    sort_artifacts(config.artifacts, config.folder, good=step.verdict == "good", label=label)
    return step


def _make_and_evaluate(
    number: int,
    make: Callable[[int], object],
    check: CommandCheck | None,
    config: RepeatConfig,
    ask: Callable[[int], bool] | None,
) -> RepeatStep:
    if config.info is not None:
        Path(config.info).write_text(json.dumps({"iteration": number}), encoding="utf-8")
    try:
        make(number)
    except (errors.BackendUnavailableError, errors.UnsupportedFeatureError):  # not of this build: all would fail so
        raise
    except errors.BackendError as exc:
        return RepeatStep(number=number, verdict="error", detail=str(exc))
    if check is None:
        assert ask is not None
        return RepeatStep(number=number, verdict="good" if ask(number) else "bad")
    with tempfile.TemporaryFile() as output:
        code = run_group(list(check.command), output, check.timeout_seconds)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    outcome: CheckOutcome = check.evaluate(code, printed)
    verdict: Literal["good", "bad", "error"] = (
        "good" if outcome.verdict == "pass" else "bad" if outcome.verdict == "fail" else "error"
    )
    shown = config.show == "all" or (config.show == "failing" and verdict != "good")
    return RepeatStep(
        number=number, verdict=verdict, detail=outcome.detail.split("\n")[0], output=printed if shown else ""
    )


def sort_artifacts(names: Iterable[str], folder: str | Path, *, good: bool, label: str) -> None:
    """Move the files that a check left to ``good/`` or ``bad/``; what it did not leave is logged and skipped.

    Args:
        names: The files.
        folder: Where ``good/`` and ``bad/`` are.
        good: Whether the check passed.
        label: Goes behind each file's name: ``replay.json`` becomes ``replay_<label>.json``.
    """
    place = Path(folder) / ("good" if good else "bad")
    for path in map(Path, names):
        if not path.exists():
            log.warning("%s was not there after %s; it is skipped", path, label)
            continue
        place.mkdir(parents=True, exist_ok=True)
        shutil.move(path, place / f"{path.stem}_{label}{path.suffix}")
