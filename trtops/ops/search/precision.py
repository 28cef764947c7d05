"""Precision: which nodes must stay in FP32 so that a 16-bit model is accurate enough.

The search is over sets of nodes to keep. Groups come first: all nodes of a type, all of a scope (``encoder/layer.3``),
and nodes of a type in a scope; if no single group is enough, the best ones are joined until they are. What was found is
then thinned until no single node of it can go. Each set is tried by writing its Casts into the ONNX
model and running that; by default on ONNX Runtime with every 16-bit result rounded as a GPU would round it.
"""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import BaseRunner, Feed
from trtops.backend.onnx import emulate, walk
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import KEPT_TYPES, Rewritten, lower_precision, without_functions
from trtops.backend.onnx.save import save_model
from trtops.backend.onnx.walk import node_name
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs
from trtops.metadata import TensorMetadata
from trtops.ops.judging.feeds import open_feeds
from trtops.ops.judging.judgement import CheckConfig, default_tolerances, measure_latency
from trtops.ops.model.opening import open_model
from trtops.ops.search import algorithms
from trtops.ops.search.precision_replay import load_answers, save_answers
from trtops.ops.search.precision_result import Names, PrecisionResult, PrecisionStep, TradeOff
from trtops.record import Record
from trtops.tracking.base import NO_RUN, Run

log = logging.getLogger(__name__)

_PER_LEVEL = 48  # groups of one kind that are tried, the smallest left out first


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig(Record):
    """How to search.

    Attributes:
        to: The lower precision.
        mode: ``minimal`` looks for a set of nodes of which none can be left out. ``bisect`` and ``linear`` keep all nodes
            from one end of the model, and look for how many that must be.
        direction: The end that ``bisect`` and ``linear`` keep: ``forward`` the beginning, ``reverse`` the end.
        tolerances: What the model must meet, against itself in FP32; by default what is expected of that precision.
        data: Where inputs come from (:func:`trtops.ops.judging.feeds.open_feeds`); random unless given.
        iterations: How many random feeds.
        seed: Seed of random data.
        exclude: Nodes that stay in FP32 whatever comes out: names, patterns or types.
        keep_types: Types of nodes that stay in FP32 beside those.
        max_checks: Where the search stops with the smallest set so far; None never does.
        output: Where to write the model in mixed precision.
        exclude_list: Where to write the names of the nodes to keep, one a line.
        latency_runs: Inferences timed for each point of the picture; 0 measures none.
        load_replay: Answers of an earlier search of the same kind, which are not asked for again.
        save_replay: Where to write the answers, anew after each.
    """

    to: Literal["fp16", "bf16"] = "fp16"
    mode: Literal["minimal", "bisect", "linear"] = "minimal"
    direction: Literal["forward", "reverse"] = "forward"
    tolerances: Tolerances | None = None
    data: str | None = None
    iterations: int = 1
    seed: int = 1
    exclude: tuple[str, ...] = ()
    keep_types: tuple[str, ...] = tuple(sorted(KEPT_TYPES))
    max_checks: int | None = None
    output: str | None = None
    exclude_list: str | None = None
    latency_runs: int = 20
    load_replay: str | None = None
    save_replay: str | None = None

    def __post_init__(self) -> None:
        if self.max_checks is not None and self.max_checks < 2:
            raise errors.ConfigError(f"max_checks is {self.max_checks}; expected 2 or more.")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A set of nodes to be tried.

    Attributes:
        original: The model in FP32; not to be changed.
        keep: Names of the nodes that stay in FP32.
        config: The search it belongs to.
    """

    original: onnx.ModelProto = field(repr=False)
    keep: Names
    config: PrecisionConfig

    @cached_property
    def rewritten(self) -> Rewritten:
        """The model in mixed precision; inputs and outputs stay FP32."""
        patterns = [*self.config.exclude, *map(_literal, sorted(self.keep))]
        return lower_precision(self.original, self.config.to, exclude=patterns, keep_types=self.config.keep_types)


MakeRunner: TypeAlias = Callable[[Candidate], BaseRunner]


def emulated_runner(candidate: Candidate) -> BaseRunner:
    """ONNX Runtime on the CPU, rounding each 16-bit result; see :mod:`trtops.backend.onnx.emulate`."""
    from trtops.ops.judging.submodel import onnxruntime_runner

    proto = onnx.ModelProto()
    proto.CopyFrom(candidate.rewritten.model)
    emulate.emulate_low_precision(proto)
    return onnxruntime_runner(proto)


def precision(
    model: str | Path | Model | onnx.ModelProto,
    config: PrecisionConfig | None = None,
    *,
    feeds: Iterable[Feed] | None = None,
    runner: MakeRunner = emulated_runner,
    judge: Callable[[Candidate], bool] | None = None,
    run: Run = NO_RUN,
    progress: Callable[[PrecisionStep], None] | None = None,
) -> PrecisionResult:
    """Find the nodes that must stay in FP32.

    Args:
        model: The model in FP32, or its path; not changed.
        config: How to search.
        feeds: Inputs, in place of the config's source.
        runner: Makes the runner that a candidate is judged by: :func:`emulated_runner`,
            :class:`trtops.ops.search.precision_engines.TensorRTEngines`, or one that builds ``candidate.rewritten.model`` with any back end.
        judge: Says whether a candidate is good, in place of running and comparing it
            (:class:`trtops.ops.search.precision_check.CandidateCheck` asks a command). Then there are no errors to tell: they
            are 0 for what is good and infinite for the rest; no data is made, and no latency measured.
        run: Gets params, numbers and artifacts; it is not ended.
        progress: Called after each check.

    Raises:
        ModelError: If the model cannot be used.
        ConfigError: If an excluded name fits nothing.
        InputError: If the data does not fit the model.
        BackendError: If the model does not run in FP32.
    """
    config = PrecisionConfig() if config is None else config
    started = time.perf_counter()
    opened = open_model(model)
    trial = _Trial.prepare(opened, config, feeds, runner, judge, progress)
    try:
        keep, verdict, minimal = _find(trial, config)
    except _OutOfChecksError:
        keep, verdict, minimal = trial.best(), "mixed", False
    candidate = trial.candidate(keep)
    points = _points(trial, keep, config)
    result = PrecisionResult(
        verdict=verdict,
        keep=tuple(name for name in trial.names if name in keep),
        exclude=_short(trial, keep),
        minimal=minimal,
        nodes=len(trial.names),
        checks=len(trial.steps),
        seconds=time.perf_counter() - started,
        steps=tuple(trial.steps),
        points=points,
        path=config.output,
        _proto=candidate.rewritten.model,
    )
    if config.output is not None:
        if Path(config.output).resolve() in {path.resolve() for path in opened.files()}:
            raise errors.ConfigError(f"output is {config.output!r}, which is the model itself. Give another path.")
        save_model(result.model, config.output)
    if config.exclude_list is not None:
        Path(config.exclude_list).write_text("".join(f"{name}\n" for name in result.keep), encoding="utf-8")
    _log(run, opened, config, result)
    return result


class _OutOfChecksError(Exception):
    """The search may not ask any more."""


@dataclass
class _Trial:
    """A model with its golden outputs, and every set that was tried."""

    original: onnx.ModelProto
    config: PrecisionConfig
    tolerances: Tolerances
    feeds: list[Feed]
    golden: list[dict[str, Any]]
    names: list[str]
    ops: dict[str, str]
    make: MakeRunner
    judge: Callable[[Candidate], bool] | None
    progress: Callable[[PrecisionStep], None] | None
    answers: Mapping[Names, tuple[bool, float]]
    steps: list[PrecisionStep] = field(default_factory=list)
    known: dict[Names, PrecisionStep] = field(default_factory=dict)

    @classmethod
    def prepare(
        cls,
        model: Model,
        config: PrecisionConfig,
        feeds: Iterable[Feed] | None,
        make: MakeRunner,
        judge: Callable[[Candidate], bool] | None,
        progress: Callable[[PrecisionStep], None] | None,
    ) -> _Trial:
        original = without_functions(model.proto())
        rewritten = lower_precision(original, config.to, exclude=config.exclude, keep_types=config.keep_types)
        lowered = set(rewritten.lowered)
        by_name = {node_name(node): node.op_type for node in walk.nodes(original) if node_name(node) in lowered}
        given = _inputs(model, config, feeds) if judge is None else []
        return cls(
            original=original,
            config=config,
            tolerances=config.tolerances or default_tolerances(config.to),
            feeds=list(given),
            golden=_golden(original, given),
            names=list(by_name),
            ops=by_name,
            make=make,
            judge=judge,
            progress=progress,
            answers={} if config.load_replay is None else load_answers(Path(config.load_replay)),
        )

    def candidate(self, keep: Iterable[str]) -> Candidate:
        return Candidate(original=self.original, keep=frozenset(keep), config=self.config)

    def try_set(self, keep: Iterable[str], group: str = "") -> PrecisionStep:
        """Measure a set of nodes to keep, once."""
        names = frozenset(keep)
        if names in self.known:
            return self.known[names]
        if self.config.max_checks is not None and len(self.steps) >= self.config.max_checks:
            raise _OutOfChecksError
        started = time.perf_counter()
        good, excess = self.answers[names] if names in self.answers else self._measure(names)
        step = PrecisionStep(
            kept=len(names), group=group, good=good, excess=excess, seconds=time.perf_counter() - started
        )
        log.debug("%d of %d nodes kept%s: %s", len(names), len(self.names), f" ({group})" if group else "", step)
        self.known[names] = step
        self.steps.append(step)
        if self.config.save_replay is not None:
            save_answers(Path(self.config.save_replay), self.known)
        if self.progress is not None:
            self.progress(step)
        return step

    def _measure(self, keep: Names) -> tuple[bool, float]:
        """Whether a candidate is good, and its largest error as a multiple of the tolerances."""
        if self.judge is not None:
            good = self.judge(self.candidate(keep))
            return good, 0.0 if good else math.inf
        report = self._compare(keep)
        return bool(report), math.inf if report is None else _excess(report, self.tolerances)

    def _compare(self, keep: Names) -> ComparisonReport | None:
        """Run a candidate; None if the back end does not take it."""
        try:
            with self.make(self.candidate(keep)) as runner:
                outputs = [{k: np.array(v) for k, v in runner.infer(feed).items()} for feed in self.feeds]
        except (errors.BackendError, errors.ModelError) as exc:
            log.warning("%d nodes kept: %s", len(keep), exc)
            return None
        return compare_outputs(outputs, self.golden, self.tolerances)

    def best(self) -> Names:
        """The smallest set that met the tolerances so far, or else all."""
        good = [names for names, step in self.known.items() if step.good]
        return min(good, key=len, default=frozenset(self.names))


def _inputs(model: Model, config: PrecisionConfig, feeds: Iterable[Feed] | None) -> list[Feed]:
    inputs = TensorMetadata.of(model.info.inputs)
    source = config.data if feeds is None else feeds
    return [dict(feed) for feed in open_feeds(source, inputs, iterations=config.iterations, seed=config.seed)]


def _golden(model: onnx.ModelProto, feeds: Sequence[Feed]) -> list[dict[str, Any]]:
    if not feeds:
        return []
    from trtops.backend.onnxrt.reference import reference_outputs

    return [dict(outputs) for outputs in reference_outputs(model, feeds)]


def _excess(report: ComparisonReport, tolerances: Tolerances) -> float:
    """How far the worst element of all outputs is beyond both tolerances, as a multiple; infinite for NaN."""
    worst = 0.0
    for output in report.outputs:
        if output.statistics is None or output.statistics.nan_errors:
            return math.inf
        own = tolerances.of(output.name)
        if math.isinf(own.atol) or math.isinf(own.rtol):
            worst = max(worst, 1.0 - (output.statistics.cosine or 0.0))
            continue
        for d, r in output.statistics.frontier:
            worst = max(worst, min(d / own.atol if own.atol else math.inf, r / own.rtol if own.rtol else math.inf))
    return worst


def _find(trial: _Trial, config: PrecisionConfig) -> tuple[Names, Literal["good", "mixed", "bad"], bool]:
    """The nodes to keep, and whether none of them can go."""
    everything = frozenset(trial.names)
    if trial.try_set((), "nothing").good:
        return frozenset(), "good", True
    if not everything or not trial.try_set(everything, "everything").good:
        return everything, "bad", False
    if config.mode == "minimal":
        return _minimal(trial), "mixed", True
    ordered = trial.names if config.direction == "forward" else trial.names[::-1]

    def meets(numbers: Sequence[int]) -> Iterator[bool]:
        return (trial.try_set(ordered[:number], f"{config.direction} {number}").good for number in numbers)

    walk_along = algorithms.bisect if config.mode == "bisect" else algorithms.linear
    return frozenset(ordered[: walk_along(meets, 0, len(ordered))]), "mixed", False


def _minimal(trial: _Trial) -> Names:
    """A set of nodes that is enough, and of which none can be lowered."""
    groups = _groups(trial)
    tried = {label: trial.try_set(names, label) for label, names in groups.items()}
    enough = [label for label, step in tried.items() if step.good]
    if enough:
        start = groups[min(enough, key=lambda label: len(groups[label]))]
    else:
        start = _joined(trial, [groups[label] for label in sorted(tried, key=lambda label: tried[label].excess)])
    return _thinned(trial, [name for name in trial.names if name in start])


def _thinned(trial: _Trial, kept: list[str]) -> Names:
    """A part of what is enough that is enough, and of which no single node can go.

    Chunks are left out as long as the rest is enough, ever smaller ones. Errors of 16 bit add up, and most answers hold
    many nodes: this asks twice per node, where delta debugging, which also tries what is left of little, asks by the square.
    """
    size = max(len(kept) // 2, 1)
    while True:
        before = len(kept)
        for start in range(len(kept) - size, -size, -size):
            rest = kept[: max(start, 0)] + kept[start + size :]
            if rest and trial.try_set(rest).good:
                kept = rest
        if size == 1 and len(kept) == before:
            return frozenset(kept)
        size = max(size // 2, 1)


def _joined(trial: _Trial, groups: Sequence[Names]) -> Names:
    """As many of the groups, the best first, as are enough together."""
    unions: list[Names] = [frozenset()]
    for group in groups:
        if not group <= unions[-1]:
            unions.append(unions[-1] | group)
    unions.append(frozenset(trial.names))

    def meets(numbers: Sequence[int]) -> Iterator[bool]:
        return (trial.try_set(unions[number], "groups joined").good for number in numbers)

    return unions[algorithms.bisect(meets, 0, len(unions) - 1)]


def _groups(trial: _Trial) -> dict[str, Names]:
    """Nodes that have something in common, by what that is: type, scope, or both; none is all of them."""
    groups: dict[str, set[str]] = {}
    for name in trial.names:
        op = trial.ops[name]
        scopes = list(_scopes(name))
        for label in (op, *(f"{scope}/*" for scope in scopes), *(f"{scope}/* {op}" for scope in scopes)):
            groups.setdefault(label, set()).add(name)
    different: dict[Names, str] = {}
    for label, names in groups.items():
        if len(names) < len(trial.names) and (len(names) > 1 or "/*" not in label):
            different.setdefault(frozenset(names), label)
    largest = sorted(different, key=len, reverse=True)[:_PER_LEVEL]
    return {different[names]: names for names in reversed(largest)}


def _scopes(name: str) -> Iterator[str]:
    """The scopes around a node, as ``a`` and ``a/b`` for ``a/b/c``."""
    parts = name.strip("/").split("/")
    lead = "/" if name.startswith("/") else ""
    for depth in range(1, len(parts)):
        yield lead + "/".join(parts[:depth])


def _short(trial: _Trial, keep: Names) -> tuple[str, ...]:
    """The names, or the type or scope that stands for just these."""
    types = {trial.ops[name] for name in keep}
    if len(keep) > 1 and keep == {name for name in trial.names if trial.ops[name] in types}:
        return tuple(sorted(types))
    for label, names in _groups(trial).items():
        if len(keep) > 1 and names == keep and label.endswith("/*"):
            return (label,)
    return tuple(_literal(name) for name in trial.names if name in keep)


def _literal(name: str) -> str:
    """A pattern that stands for a name alone, whatever is in it."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _points(trial: _Trial, keep: Names, config: PrecisionConfig) -> tuple[TradeOff, ...]:
    """The ends, the answer, and what was tried on the way that nothing else beats in both nodes kept and error."""
    labels = {frozenset(): f"all {config.to.upper()}", frozenset(trial.names): "all FP32", keep: "found"}
    frontier: dict[Names, PrecisionStep] = {}
    best = math.inf
    for names, step in sorted(trial.known.items(), key=lambda item: (item[1].kept, item[1].excess)):
        if step.excess < best or names in labels:
            frontier[names] = step
            best = min(best, step.excess)
    chosen = [n for n in frontier if n in labels] + [n for n in frontier if n not in labels][:5]
    return tuple(
        TradeOff(
            label=labels.get(names) or trial.known[names].group or f"{len(names)} kept",
            kept=len(names),
            excess=trial.known[names].excess,
            good=trial.known[names].good,
            latency_ms=_latency(trial, names, config.latency_runs),
        )
        for names in sorted(chosen, key=len)
    )


def _latency(trial: _Trial, keep: Names, runs: int) -> float | None:
    """Median latency: of the back end under test, or of the model itself where that only emulates."""
    if not runs or trial.judge is not None:
        return None
    from trtops.ops.judging.submodel import onnxruntime_runner

    candidate = trial.candidate(keep)
    make = trial.make(candidate) if trial.make is not emulated_runner else onnxruntime_runner(candidate.rewritten.model)
    try:
        with make as runner:
            measured = measure_latency(runner, trial.feeds, CheckConfig(warm_up=3, latency_runs=runs))
    except errors.BackendError as exc:
        log.warning("Latency with %d nodes kept was not measured: %s", len(keep), exc)
        return None
    return None if measured is None else measured.p50_ms


def draw(points: Sequence[TradeOff], to: str = "fp16") -> bytes:
    """Draw accuracy against latency, or against the nodes kept where no latency was measured.

    Args:
        points: What to draw.
        to: The lower precision, for the title.

    Returns:
        A PNG file's bytes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    timed = all(point.latency_ms is not None for point in points)
    finite = [point.excess for point in points if 0 < point.excess < math.inf]
    top, bottom = max(finite, default=1.0) * 10, min([*finite, 1.0]) / 3
    for point in points:
        x = point.latency_ms if timed and point.latency_ms is not None else point.kept
        y = min(max(point.excess, bottom), top)
        axes.scatter(x, y, c="#2ca02c" if point.good else "#d62728", s=40, zorder=3)
        text = f"{point.label}: {point.kept} kept" + ("" if point.excess < math.inf else ", NaN or infinite")
        axes.annotate(text, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8, parse_math=False)
    axes.axhline(1.0, color="#555555", linewidth=1, linestyle="--")
    axes.set_yscale("log")
    axes.set_ylabel("largest error, as a multiple of the tolerances")
    axes.set_xlabel("median latency in ms" if timed else "nodes kept in FP32")
    axes.set_title(f"Nodes kept in FP32 in a {to.upper()} model", loc="left", fontsize=10)
    axes.margins(x=0.25)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=90)
    return file.getvalue()


def _log(run: Run, model: Model, config: PrecisionConfig, result: PrecisionResult) -> None:
    if run is NO_RUN:
        return
    run.log_params({"model": model.name, **config.to_dict()})
    metrics: Mapping[tuple[str, ...], float] = {
        ("precision", "nodes"): result.nodes,
        ("precision", "kept"): len(result.keep),
        ("precision", "checks"): result.checks,
        ("precision", "seconds"): result.seconds,
        ("precision", "excess"): next((p.excess for p in result.points if p.label == "found"), 0.0),
    }
    run.log_metrics(metrics)
    run.log_json(result, "precision/result.json")
    run.log_text("".join(f"{name}\n" for name in result.keep), "precision/exclude.txt")
    run.log_bytes(draw(result.points, config.to), "precision/tradeoff.png")
