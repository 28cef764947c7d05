"""The fewest tensors that take an error away when they are marked as outputs.

A tensor that is an output has to be made, so that nothing is fused across it. Where marking takes an error away, the error
lies in what is fused there; the marked tensors then are a repair, since an engine built with them is right.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Feed
from trtops.comparator.report import Tolerances
from trtops.ops.evaluation.check import tolerances_for
from trtops.ops.evaluation.feeds import DataConfig
from trtops.ops.model.opening import Source, Subject, open_model
from trtops.ops.result import OnProgress, OpResult, finish_with, op_run
from trtops.ops.search import algorithms
from trtops.ops.search.triage.sides import Built, MakeRunner, Sides, reference
from trtops.spec import BuildConfig
from trtops.tracking import schema
from trtops.tracking.base import Tracker
from trtops.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class IsolationConfig(DataConfig):
    """On what data parts are kept apart, and for how long.

    Attributes:
        tolerances: When outputs are good enough; by default what is expected of the precision under test.
        max_builds: Builds at most; where they are used up, the smallest found so far is the answer.
    """

    tolerances: Tolerances | None = None
    max_builds: int = 200

    def __post_init__(self) -> None:
        if self.max_builds < 2:
            raise errors.ConfigError(f"max_builds is {self.max_builds}; expected 2 or more.")


@dataclass(frozen=True, kw_only=True)
class MarkingResult(OpResult):
    """Which tensors to mark.

    Attributes:
        verdict: ``bad`` if the outputs differ with nothing marked.
        vanishes: Whether the error goes away when all tensors are marked.
        marked: The fewest that were found to take it away; empty if none do.
        minimal: Whether it was checked that none of them can be left out.
        tensors: How many could be marked.
        builds: Builds made.
        seconds: Wall time.
    """

    verdict: Verdict
    vanishes: bool = False
    marked: tuple[str, ...] = ()
    minimal: bool = False
    tensors: int = 0
    builds: int
    seconds: float

    @property
    def headline(self) -> str:
        """Whether the error goes away, and with how many marks."""
        if self.verdict == "good":
            return "nothing to take away"
        return f"{len(self.marked)} marked tensors take the error away" if self.vanishes else "marking changes nothing"

    def body(self) -> Iterator[str]:
        """The tensors, and what it took to find them."""
        if self.verdict == "good":
            yield "The outputs are right with nothing marked."
        elif not self.vanishes:
            yield "The outputs are wrong even where every tensor is an output: nothing that is fused is to blame."
        else:
            yield "The error is not there when these tensors are outputs, and so nothing is fused across them:"
            yield from ("", *(f"- `{name}`" for name in self.marked))
        note = "none of them can be left out" if self.minimal else "there may be fewer"
        told = f" Of {self.tensors} tensors; {note}." if self.marked else ""
        yield from ("", f"{self.builds} builds in {self.seconds:.1f} s.{told}")


class OutOfBuildsError(Exception):
    """``max_builds`` is reached: the search may not build any more."""


class Apart:
    """A model under test with some tensors kept apart, each set built once.

    Attributes:
        sides: Both sides of the comparison.
        builds: Builds made so far.
    """

    def __init__(self, sides: Sides, max_builds: int, progress: OnProgress | None = None) -> None:
        self.sides = sides
        self._progress = progress
        self.builds = 0
        self._max_builds = max_builds
        self._known: dict[frozenset[str], bool] = {}

    def is_right(self, marked: Iterable[str]) -> bool:
        """Whether the model's own outputs are right while these tensors are outputs too.

        Raises:
            OutOfBuildsError: If no further build may be made.
        """
        asked = frozenset(marked) - frozenset(self.sides.outputs)
        if asked not in self._known:
            if self.builds >= self._max_builds:
                raise OutOfBuildsError
            self.builds += 1
            if self._progress is not None:
                self._progress(self.builds, None)
            ordered = [name for name in self.sides.tensors if name in asked]
            report, _ = self.sides.compare(ordered)
            verdicts = {output.name: output.verdict for output in report.outputs}
            self._known[asked] = all(verdicts[name] == "good" for name in self.sides.outputs)
        return self._known[asked]

    @property
    def smallest_right(self) -> frozenset[str] | None:
        """The smallest set that was found to be right so far; None if none was."""
        return min((asked for asked, right in self._known.items() if right), key=len, default=None)


def opened_sides(
    model: Source, actual: BuildConfig | MakeRunner, config: IsolationConfig, feeds: Iterable[Feed] | None
) -> Sides:
    """Both sides of a comparison: what is under test, and the model as it is."""
    opened = open_model(model)
    given = [dict(feed) for feed in config.open_for(opened, feeds)]
    precision = actual.precision if isinstance(actual, BuildConfig) else "fp32"
    tolerances = replace(tolerances_for(precision, config.tolerances, opened), clamped_equal=True)
    make: MakeRunner = Built(actual) if isinstance(actual, BuildConfig) else actual
    return Sides(opened.proto(lean=True), make, reference, given, tolerances)


def find_marks(
    model: Source,
    actual: BuildConfig | MakeRunner,
    config: IsolationConfig | None = None,
    *,
    feeds: Iterable[Feed] | None = None,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    file: str | Path | None = None,
    progress: OnProgress | None = None,
) -> MarkingResult:
    """Find the fewest tensors that take an error away when they are marked as outputs.

    Args:
        model: The model, or its path; not changed.
        actual: What is under test: how an engine is built, or what makes a runner.
        config: On what data, and how long to search.
        feeds: Inputs, in place of the config's source.
        tracker: The memory, which gets a run; None keeps nothing.
        experiment: Experiment to log to; the model's name unless given.
        tags: Further tags of the run.
        parent: Id of a parent run.
        file: The file that a model in memory was made from; the run is named after it.
        progress: Called before each build, with how many there are then.

    Raises:
        ModelError: If the model cannot be used.
        InputError: If the data does not fit it.
        BackendError: If a side cannot be built or run.
    """
    config = IsolationConfig() if config is None else config
    subject = Subject.of(model, file)
    experiment = experiment or subject.name
    name = f"{subject.name} marks"
    with op_run(tracker, experiment, name, kind="isolation", model=subject.file, tags=tags, parent=parent) as run:
        started = time.perf_counter()
        apart = Apart(opened_sides(model, actual, config, feeds), config.max_builds, progress)
        found = replace(fewest_marks(apart), seconds=time.perf_counter() - started)
        result = replace(found, title=f"marks {subject}").kept_in(run, experiment)
        run.log_params({"model": subject.name, **config.to_dict()})
        run.log_json(result, schema.Artifact.MARKS)
        finish_with(run, result, tracker)
        return result


def fewest_marks(apart: Apart) -> MarkingResult:
    """The answer of :func:`find_marks` to a model under test, without its wall time."""
    names = [name for name in apart.sides.tensors if name not in apart.sides.outputs]
    result = MarkingResult(verdict="bad", tensors=len(names), builds=0, seconds=0.0)
    if apart.is_right(()):
        return replace(result, verdict="good", builds=apart.builds)
    if not names or not apart.is_right(names):
        return replace(result, builds=apart.builds)

    def ask(sets: Sequence[algorithms.Items]) -> Iterator[bool]:
        return (apart.is_right(names[i] for i in items) for items in sets)

    minimal = True
    try:
        marked = [names[i] for i in algorithms.smallest(ask, range(len(names)))]
    except OutOfBuildsError:
        minimal = False
        smallest = apart.smallest_right or frozenset(names)
        marked = [name for name in names if name in smallest]
    return replace(result, vanishes=True, marked=tuple(marked), minimal=minimal, builds=apart.builds)
