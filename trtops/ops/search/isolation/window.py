"""The smallest window of nodes that goes wrong where it is built on its own, or whose being kept apart makes the model right.

For regions whose inside a builder neither shows nor lets anyone choose: what TensorRT compiles as one (Myelin, foreign nodes).
Windows are stretches of nodes in the order of execution. One built on its own is fed with what flows there in the whole
model. Where none goes wrong on its own, the fault needs what is around it: then tensors are marked until the error is
gone, and the window is looked for around them whose own ends, when marked, take it away.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trtops.backend.base import Feed
from trtops.backend.onnx.submodel import Cutter, Values
from trtops.backend.onnx.walk import node_name
from trtops.backend.onnxrt.observe import observe
from trtops.ops.evaluation.submodel import CheckOutcome, ComparisonCheck
from trtops.ops.model.opening import Source, Subject
from trtops.ops.result import OnProgress, OpResult, finish_with, op_run
from trtops.ops.search import algorithms
from trtops.ops.search.isolation.marking import Apart, IsolationConfig, OutOfBuildsError, fewest_marks, opened_sides
from trtops.ops.search.triage.sides import MakeRunner
from trtops.record import Record
from trtops.spec import BuildConfig
from trtops.tracking import schema
from trtops.tracking.base import Tracker
from trtops.verdict import Verdict

_SHORT = 5
"""Nodes of a window that is short enough."""

_WIDEST_APART = 12
"""Nodes of the widest window that is tried around marked tensors."""


@dataclass(frozen=True, kw_only=True)
class WindowNode(Record):
    """A node of a window.

    Attributes:
        name: Its name, or its first output's.
        op: Its type.
    """

    name: str
    op: str


@dataclass(frozen=True, kw_only=True)
class IsolateResult(OpResult):
    """Which window flips the verdict.

    Attributes:
        verdict: ``bad`` if the outputs of the whole model are wrong.
        how: How it flips: ``own``, it goes wrong when built on its own; ``apart``, the model is right when it is kept apart;
            ``none``, nothing smaller than the model does either.
        nodes: The window's nodes, in the order of execution.
        marked: For ``apart``: the tensors at its ends, which are outputs then.
        minimal: Whether no shorter stretch inside of it flips the verdict, as was checked.
        total: Nodes of the model.
        builds: Builds made.
        seconds: Wall time.
    """

    verdict: Verdict
    how: Literal["own", "apart", "none"] = "none"
    nodes: tuple[WindowNode, ...] = ()
    marked: tuple[str, ...] = ()
    minimal: bool = False
    total: int = 0
    builds: int
    seconds: float

    @property
    def headline(self) -> str:
        """The window's size."""
        if self.verdict == "good":
            return "nothing to isolate"
        return f"{len(self.nodes)} of {self.total} nodes" if self.nodes else "no window found"

    def body(self) -> Iterator[str]:
        """What flips the verdict, and what it took to find it."""
        said = {
            "own": "These nodes go wrong when they are built on their own:",
            "apart": f"The model is right when these nodes are kept apart, by marking {', '.join(f'`{n}`' for n in self.marked)}:",
            "none": "No part of the model goes wrong on its own, and keeping parts apart does not make it right.",
        }
        yield "The outputs are right." if self.verdict == "good" else said[self.how]
        yield from ("", *(f"- {node.op} `{node.name}`" for node in self.nodes))
        yield from ("", f"{self.builds} builds in {self.seconds:.1f} s.")


def isolate(
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
) -> IsolateResult:
    """Find the smallest window of nodes that flips the verdict; arguments are those of :func:`find_marks`.

    Raises:
        ModelError: If the model cannot be used.
        InputError: If the data does not fit it.
        BackendError: If a side cannot be built or run.
    """
    config = IsolationConfig() if config is None else config
    subject = Subject.of(model, file)
    experiment = experiment or subject.name
    name = f"{subject.name} isolate"
    with op_run(tracker, experiment, name, kind="isolation", model=subject.file, tags=tags, parent=parent) as run:
        started = time.perf_counter()
        sides = opened_sides(model, actual, config, feeds)
        apart = Apart(sides, config.max_builds, progress)
        result = IsolateResult(verdict="good", total=len(sides.cutter.order), builds=1, seconds=0.0)
        if not apart.is_right(()):
            result = replace(result, verdict="bad", builds=apart.builds)
            with ExitStack() as stack:
                observed = observe(sides.cutter, sides.feeds)
                stack.callback(observed.close)
                check = ComparisonCheck(runner=sides.actual, tolerances=sides.tolerances)
                own = _OwnWindows(sides.cutter, observed, check, config, progress)
                result = _window_on_its_own(own, result)
            if result.how == "none":
                result = _window_apart(apart, sides.cutter, result)
        result = replace(result, title=f"isolate {subject}", seconds=time.perf_counter() - started)
        result = result.kept_in(run, experiment)
        run.log_params({"model": subject.name, **config.to_dict()})
        run.log_json(result, schema.Artifact.WINDOW)
        finish_with(run, result, tracker)
        return result


class _OwnWindows:
    """Windows built on their own, each once."""

    def __init__(
        self,
        cutter: Cutter,
        values: Values,
        check: ComparisonCheck,
        config: IsolationConfig,
        progress: OnProgress | None,
    ) -> None:
        self.cutter = cutter
        self.count = len(cutter.parts)
        self.builds = 0
        self._values = values
        self._check = check
        self._max_builds = config.max_builds
        self._progress = progress
        self._known: dict[algorithms.Interval, bool] = {}

    def fails(self, low: int, high: int) -> bool:
        """Whether the parts from one up to, not including, another go wrong when built on their own."""
        if low >= high:
            return False
        if (low, high) not in self._known:
            if self.builds >= self._max_builds:
                raise OutOfBuildsError
            self.builds += 1
            if self._progress is not None:
                self._progress(self.builds, None)
            part = self.cutter.cut(self.nodes(low, high), self._values)
            self._known[low, high] = CheckOutcome.of(self._check(part)).verdict == "fail"
        return self._known[low, high]

    def ask(self, windows: Sequence[algorithms.Interval]) -> Iterator[bool]:
        """The same for several, in order."""
        return (self.fails(low, high) for low, high in windows)

    def nodes(self, low: int, high: int) -> list[int]:
        """The nodes of a window, by their places in the model."""
        return [index for part in self.cutter.parts[low:high] for index in part]

    def shortest_known(self) -> algorithms.Interval | None:
        """The shortest window that is known to fail."""
        failing = (window for window, fails in self._known.items() if fails)
        return min(failing, key=lambda window: window[1] - window[0], default=None)


def _window_on_its_own(own: _OwnWindows, result: IsolateResult) -> IsolateResult:
    minimal = True
    try:
        window: algorithms.Interval | None = (0, own.count)
        if own.fails(0, own.count):
            window = _narrowed(own, _shrunk(own, algorithms.halve(own.ask, (0, own.count))))
        else:  # cut apart from what feeds it, the whole is right: a part may go wrong still
            window = None
    except OutOfBuildsError:
        minimal, window = False, own.shortest_known()
    result = replace(result, builds=result.builds + own.builds)
    if window is None or (window == (0, own.count) and own.count > _WIDEST_APART):
        return result
    indices = sorted(own.nodes(*window), key=own.cutter.order.index)
    return replace(result, how="own", nodes=_named(own.cutter, indices), minimal=minimal)


def _shrunk(own: _OwnWindows, window: algorithms.Interval) -> algorithms.Interval:
    """The window without what can be left out at its ends: the shortest beginning that fails, and the shortest end of that."""
    low, high = window
    high = algorithms.bisect(lambda ends: own.ask([(low, end) for end in ends]), low, high)
    length = algorithms.bisect(lambda sizes: own.ask([(high - size, high) for size in sizes]), 0, high - low)
    low = high - length
    while own.fails(low + 1, high):
        low += 1
    while own.fails(low, high - 1):
        high -= 1
    return low, high


def _narrowed(own: _OwnWindows, window: algorithms.Interval) -> algorithms.Interval:
    """A short window inside of a long one, where there is one: what follows can hide an error, as normalization hides a shift."""
    low, high = window
    if high - low <= _SHORT:
        return window
    widths = range(1, _SHORT + 1)
    inside = ((start, start + width) for width in widths for start in range(low, high - width + 1))
    found = algorithms.first_failing(own.ask, inside)
    return window if found is None else _shrunk(own, found)


def _window_apart(apart: Apart, cutter: Cutter, result: IsolateResult) -> IsolateResult:
    """The smallest window around tensors whose marks take the error away, such that marks at its own ends do as well."""
    marks = fewest_marks(apart)
    if marks.vanishes:
        try:
            for window in _windows_around(cutter, marks.marked):
                ends = _ends(cutter, window)
                if ends and apart.is_right(ends):
                    named = _named(cutter, window)
                    return replace(
                        result,
                        how="apart",
                        nodes=named,
                        marked=tuple(ends),
                        minimal=True,
                        builds=result.builds + apart.builds - 1,
                    )
        except OutOfBuildsError:
            pass
    return replace(result, builds=result.builds + apart.builds - 1)


def _windows_around(cutter: Cutter, marked: Sequence[str]) -> Iterator[list[int]]:
    """Stretches of nodes that hold the maker or a reader of a marked tensor, the shortest first."""
    places = [
        place for place, index in enumerate(cutter.order) if set(marked) & {*cutter.makes(index), *cutter.reads(index)}
    ]
    for width in range(1, _WIDEST_APART + 1):
        starts = sorted({start for place in places for start in range(max(place - width + 1, 0), place + 1)})
        for start in starts:
            if start + width <= len(cutter.order):
                yield cutter.order[start : start + width]


def _ends(cutter: Cutter, window: Sequence[int]) -> list[str]:
    """The tensors that enter a window from other nodes, and those that leave it."""
    made = [name for index in window for name in cutter.makes(index)]
    visible = {name for index in cutter.order for name in cutter.visible(index)}
    entering = [name for index in window for name in cutter.reads(index) if name not in made and name in visible]
    outside = {name for index in cutter.order if index not in window for name in cutter.reads(index)}
    leaving = [name for name in made if name in outside and name in visible]
    return list(dict.fromkeys([*entering, *leaving]))


def _named(cutter: Cutter, indices: Sequence[int]) -> tuple[WindowNode, ...]:
    nodes = cutter.model.graph.node
    return tuple(WindowNode(name=node_name(nodes[i]), op=nodes[i].op_type) for i in indices)
