"""Precision: find the nodes that must stay in FP32 so that a 16-bit model is accurate enough.

Each set of nodes is tested by writing its Casts into the ONNX model and running that. By default ONNX Runtime runs it
on the CPU, with every 16-bit result rounded as a GPU rounds it.
"""

from __future__ import annotations

import itertools
import logging
import math
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import BaseRunner, Feed
from trtops.backend.onnx import emulate, walk
from trtops.backend.onnx.model import Model, is_lean
from trtops.backend.onnx.precision import Rewritten, lower_precision, without_functions
from trtops.backend.onnx.save import save_model, with_weights
from trtops.backend.onnx.walk import node_name
from trtops.backend.onnxrt.reference import reference_outputs
from trtops.backend.worker import warm_worker
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs
from trtops.ops.evaluation.check import CheckConfig, Latency, measure_latency, tolerances_for
from trtops.ops.evaluation.command import CommandCheck
from trtops.ops.evaluation.feeds import DataConfig
from trtops.ops.evaluation.submodel import onnxruntime_runner
from trtops.ops.model.model_files import Source, Subject, open_model
from trtops.ops.result import OpResult, finish_with, op_run
from trtops.ops.search.delta import Items, OutOfTestsError, Search
from trtops.ops.search.repeat import RepeatConfig, RepeatStep, iterate, remove_files
from trtops.ops.search.replays import IterationContext, load_replay, save_replay
from trtops.record import Record
from trtops.reports.document import Chart, Point, Section
from trtops.system.processes import temporary_prefix
from trtops.tables import table
from trtops.tracking import schema
from trtops.tracking.base import NO_RUN, Run, Tracker
from trtops.verdict import Verdict

log = logging.getLogger(__name__)

_AS_FAST = 1.03  # latencies closer than this are noise; the set with fewer nodes in FP32 is chosen then


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig(DataConfig):
    """How to search, and on what data.

    Attributes:
        to: The lower precision.
        mode: ``minimal`` finds a set of nodes from which none can be left out. ``bisect`` and ``linear`` keep all nodes
            from one end of the model, as few as possible.
        direction: The end that ``bisect`` and ``linear`` keep: ``forward`` the beginning, ``reverse`` the end.
        fastest: Measure the sets that pass, and sets with more nodes in FP32 and thus fewer Casts, and choose the
            fastest.
        tolerances: What the model must meet, compared with itself in FP32; by default what is expected of the
            precision.
        exclude: Nodes that stay in FP32 in any case: names, patterns or types.
        max_checks: Maximum number of checks; the result is then the smallest set so far that passes.
        output: File for the model in mixed precision.
        exclude_list: File for the names of the nodes to keep, one a line.
        latency_runs: Timed inferences for each model of the result; 0 measures none.
        load_replay: Answers of an earlier search of the same kind, which are not checked again.
        save_replay: File for the answers, written after each check.
    """

    to: Literal["fp16", "bf16"] = "fp16"
    mode: Literal["minimal", "bisect", "linear"] = "minimal"
    direction: Literal["forward", "reverse"] = "forward"
    fastest: bool = False
    tolerances: Tolerances | None = None
    exclude: tuple[str, ...] = ()
    max_checks: int | None = None
    output: str | None = None
    exclude_list: str | None = None
    latency_runs: int = 20
    load_replay: str | None = None
    save_replay: str | None = None

    def __post_init__(self) -> None:
        if self.max_checks is not None and self.max_checks < 2:
            raise errors.ConfigError(f"max_checks is {self.max_checks}; expected 2 or more.")
        if self.fastest and self.latency_runs < 1:
            raise errors.ConfigError("fastest needs measurements, but latency_runs is 0; expected 1 or more.")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A set of nodes to test.

    Attributes:
        original: The model in FP32; not to be changed.
        keep: Names of the nodes that stay in FP32.
        config: The search that it belongs to.
        is_control: Whether its outputs are set to 0, so that a check must fail on it. This holds for ``original``
            already; code that makes the candidate from something else has to do the same.
    """

    original: onnx.ModelProto = field(repr=False)
    keep: frozenset[str]
    config: PrecisionConfig
    is_control: bool = False

    @cached_property
    def rewritten(self) -> Rewritten:
        """The model in mixed precision; inputs and outputs stay FP32."""
        patterns = [*self.config.exclude, *map(_literal_pattern, sorted(self.keep))]
        weights = Path(self._folder.name) if is_lean(self.original) else None
        return lower_precision(self.original, self.config.to, exclude=patterns, weights=weights)

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        """A folder for weights, removed together with this object."""
        return tempfile.TemporaryDirectory(prefix=temporary_prefix("lowered"))


MakeRunner: TypeAlias = Callable[[Candidate], BaseRunner]


def emulated_runner(candidate: Candidate) -> BaseRunner:
    """ONNX Runtime on the CPU with each 16-bit result rounded; see :mod:`trtops.backend.onnx.emulate`."""
    proto = onnx.ModelProto()
    proto.CopyFrom(candidate.rewritten.model)
    emulate.emulate_low_precision(proto)
    return onnxruntime_runner(proto)


def _literal_pattern(name: str) -> str:
    """A pattern that matches one name only, also if it contains wildcards."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


@dataclass(frozen=True, kw_only=True)
class ModelWriter:
    """Writes a candidate as an ONNX model in mixed precision.

    Attributes:
        path: The file.
    """

    path: str

    def __call__(self, candidate: Candidate) -> None:
        """Write the model."""
        save_model(candidate.rewritten.model, self.path)


@contextmanager
def checking_candidates(
    write: Callable[[Candidate], None],
    check: CommandCheck,
    config: RepeatConfig,
    progress: Callable[[RepeatStep], None] | None = None,
) -> Iterator[Callable[[Candidate], bool]]:
    """Check candidates with a command: each is written, the command runs, and the files left behind are sorted.

    Args:
        write: Writes a candidate.
        check: The command.
        config: What to sort and to keep; ``until`` is ignored.
        progress: Called after each check.

    Yields:
        Says whether a candidate passes; raises a ConfigError if the command cannot be run.
    """
    numbers = itertools.count()

    def evaluate(candidate: Candidate) -> bool:
        step = iterate(next(numbers), lambda _: write(candidate), check, config)
        if progress is not None:
            progress(step)
        return step.verdict == "good"

    try:
        yield evaluate
    finally:
        remove_files(config)


@dataclass(frozen=True, kw_only=True)
class PrecisionStep(Record):
    """One tested set of nodes.

    Attributes:
        kept: Number of nodes in FP32.
        good: Whether the tolerances are met.
        excess: Largest error as a multiple of the tolerances: above 1 is too large.
        label: What it is, if it is one of the result's models.
        latency_ms: Median latency of one inference then; None if not measured.
    """

    kept: int
    good: bool
    excess: float
    seconds: float
    label: str = ""
    latency_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class PrecisionResult(OpResult):
    """The result of a precision search.

    Attributes:
        outcome: ``good`` if all nodes can be lowered; ``mixed`` if some must be kept; ``bad`` if the tolerances are not
            met even with all of them kept.
        to: The lower precision.
        evaluated: Whether a command or function checked candidates, so that errors are unknown.
        keep: Names of the nodes to keep in FP32, in the model's order. Nodes of functions have the names of
            :attr:`model`, in which functions are inlined.
        exclude: The same as arguments of :func:`trtops.backend.onnx.precision.lower_precision`: types where these
            select the same nodes, or else names.
        minimal: Whether it was checked that no single node of ``keep`` can be lowered.
        nodes: Nodes that can be lowered.
        points: Accuracy and latency of the result and of the models at both ends.
    """

    outcome: Literal["good", "mixed", "bad"]
    to: Literal["fp16", "bf16"] = "fp16"
    evaluated: bool = False
    keep: tuple[str, ...]
    exclude: tuple[str, ...]
    minimal: bool
    nodes: int
    checks: int
    seconds: float = 0.0
    steps: tuple[PrecisionStep, ...]
    points: tuple[PrecisionStep, ...]
    path: str | None = None
    _candidate: Any = field(default=None, repr=False, compare=False)

    @property
    def verdict(self) -> Verdict:
        """``bad`` if no set of nodes is enough."""
        return "bad" if self.outcome == "bad" else "good"

    @property
    def headline(self) -> str:
        """The outcome."""
        return self.outcome

    @property
    def model(self) -> onnx.ModelProto:
        """The model in mixed precision, with Casts where precisions meet.

        Raises:
            ConfigError: If this was read from JSON, which does not contain the model.
        """
        return with_weights(self.lean_model)

    @property
    def lean_model(self) -> onnx.ModelProto:
        """The same, with the large weights of a model beyond 2 GiB in files that exist as long as this result."""
        if self._candidate is None:
            raise errors.ConfigError(f"This result was read from a file, without its model; its path is {self.path!r}.")
        proto: onnx.ModelProto = self._candidate.rewritten.model
        return proto

    @property
    def next_step(self) -> str:
        """Build the model in mixed precision, if it was written."""
        built = self.run_id and self.path and self.verdict == "good"
        return f"trtops convert {shlex.quote(str(self.path))} --convert-to ort" if built else super().next_step

    def body(self) -> Iterator[str]:
        """The result as in a terminal."""
        yield from ("```", self.text(), "```")

    def sections(self) -> Iterator[Section]:
        """The result, with a chart of accuracy against latency, or against the number of nodes kept."""
        timed = all(point.latency_ms is not None for point in self.points)
        points = []
        for point in self.points:
            if math.isfinite(point.excess) and not self.evaluated:
                x = float(point.latency_ms or point.kept if timed else point.kept)
                points.append(Point(label=point.label, x=x, y=point.excess, tone="good" if point.good else "bad"))
        title, y = f"Nodes kept in FP32 in a {self.to.upper()} model", "largest error / allowed error"
        x_axis = "median latency in ms" if timed else "nodes kept in FP32"
        chart = Chart(title=title, form="points", points=tuple(points), x=x_axis, y=y)
        yield Section(text="\n".join(self.body()), chart=chart if points else None)

    def text(self) -> str:
        """The result for a terminal: what to keep, and a table of the models."""
        if any(point.label == "fastest" for point in self.points):
            kept = f"{len(self.keep)} of {self.nodes} nodes in FP32"
            lines = [f"The fastest model that passes keeps {kept}: {', '.join(self.exclude)}"]
        elif self.outcome == "good":
            lines = [f"All {self.nodes} nodes can be lowered."]
        elif self.outcome == "mixed":
            lines = [f"{len(self.keep)} of {self.nodes} nodes must stay in FP32: {', '.join(self.exclude)}"]
        elif self.evaluated:
            lines = ["Even with every node in FP32 the check fails: it is broken, or asks for more."]
        else:
            lines = ["Even with every node in FP32 the tolerances are not met."]
        if not self.evaluated:
            rows = (
                (p.label, str(p.kept), f"{p.excess:.3g}", "yes" if p.good else "no",
                 "-" if p.latency_ms is None else f"{p.latency_ms:.3f} ms")
                for p in self.points
            )  # fmt: skip
            lines.append(table(("model", "kept", "error / allowed", "good", "p50"), rows))
        if self.path is not None:
            lines.append(f"Wrote {self.path}")
        return "\n".join(lines)


def precision(
    model: Source,
    config: PrecisionConfig | None = None,
    *,
    feeds: Iterable[Feed] | None = None,
    runner: MakeRunner = emulated_runner,
    evaluate: Callable[[Candidate], bool] | None = None,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    file: str | Path | None = None,
    progress: Callable[[PrecisionStep], None] | None = None,
) -> PrecisionResult:
    """Find the nodes that must stay in FP32.

    Args:
        model: The model in FP32, or its path; not changed.
        config: How to search.
        feeds: Inputs, instead of ``config.data``.
        runner: Makes the runner of a candidate: :func:`emulated_runner`,
            :func:`trtops.ops.search.precision_engines.candidate_runner`, or one that builds
            ``candidate.rewritten.model``.
        evaluate: Says whether a candidate is good, instead of running and comparing it (:func:`checking_candidates`
            runs a command). Errors are then unknown: 0 for good candidates, infinite for others. No data is generated,
            and no latency measured.
        tracker: The tracking store for the run; None keeps nothing.
        experiment: Experiment to log to; the model's name by default.
        tags: Further tags of the run.
        parent: Id of a parent run.
        file: The file that a model in memory was loaded from; the run is named after it.
        progress: Called after each check.

    Raises:
        ModelError: If the model cannot be used.
        ConfigError: If an excluded name matches nothing, the output is the model's own file, ``evaluate`` passes
            everything, or the fastest model is requested of ``evaluate``, which measures nothing.
        InputError: If the data does not fit the model.
        BackendError: If the model does not run in FP32.
    """
    config = PrecisionConfig() if config is None else config
    if config.fastest and evaluate is not None:
        raise errors.ConfigError("fastest measures engines; a check command or function gives none. Use one of them.")
    subject = Subject.of(model, file)
    experiment = experiment or subject.name
    name = f"{subject.name} precision"
    with op_run(tracker, experiment, name, kind="precision", model=subject.file, tags=tags, parent=parent) as run:
        started = time.perf_counter()
        opened = open_model(model)
        if config.output is not None and Path(config.output).resolve() in {path.resolve() for path in opened.files()}:
            raise errors.ConfigError(f"output is {config.output!r}, which is the model itself. Use another path.")
        found = _PrecisionSearch(opened, config, feeds, runner, evaluate, progress).run()
        found = replace(found, title=f"precision {subject}", subject=str(subject.file or ""))
        result = replace(found, seconds=time.perf_counter() - started).kept_in(run, experiment)
        if config.output is not None:
            save_model(result.lean_model, config.output)
        if config.exclude_list is not None:
            Path(config.exclude_list).write_text("".join(f"{name}\n" for name in result.keep), encoding="utf-8")
        if run is not NO_RUN:
            run.log_params({"model": opened.name, **config.to_dict()})
            _log_result(run, result)
        finish_with(run, result, tracker)
        return result


class _PrecisionSearch:
    """One search under way. Nodes that can be lowered are numbered in the model's order; sets of them are kept."""

    def __init__(
        self,
        model: Model,
        config: PrecisionConfig,
        feeds: Iterable[Feed] | None,
        make: MakeRunner,
        evaluate: Callable[[Candidate], bool] | None,
        progress: Callable[[PrecisionStep], None] | None,
    ) -> None:
        """Find the nodes that can be lowered, read the data, and run the model in FP32."""
        self.config = config
        self.original = without_functions(model.proto(lean=True))
        lowered = set(lower_precision(self.original, config.to, exclude=config.exclude).lowered)
        self.ops = {node_name(n): n.op_type for n in walk.nodes(self.original) if node_name(n) in lowered}
        self.names = list(self.ops)
        self.everything = frozenset(range(len(self.names)))
        self.tolerances = tolerances_for(config.to, config.tolerances, model)
        self.feeds = [] if evaluate else [dict(feed) for feed in config.open_for(model, feeds)]
        self.golden = [dict(outputs) for outputs in reference_outputs(self.original, self.feeds)] if self.feeds else []
        self.make = make
        self.evaluate = evaluate
        self.progress = progress
        self.answers = {} if config.load_replay is None else _load_answers(config.load_replay)
        self.steps: dict[Items, PrecisionStep] = {}
        self.latencies: dict[Items, float | None] = {}
        self.search = Search(self.test, max_tests=config.max_checks)

    def run(self) -> PrecisionResult:
        """Search, and measure what was found."""
        keep, outcome, minimal = self.find()
        labels = {frozenset[int](): f"all {self.config.to.upper()}", self.everything: "all FP32", keep: "found"}
        if self.config.fastest and outcome != "bad":
            labels[keep] = "fewest in FP32"
            fastest = self.fastest(keep)
            keep, minimal = fastest, minimal and fastest == keep
            labels[keep] = "fastest"
        types = {self.ops[name] for name in self.kept(keep)}
        by_type = len(keep) > 1 and {n for n in self.names if self.ops[n] in types} == set(self.kept(keep))
        return PrecisionResult(
            outcome=outcome,
            to=self.config.to,
            evaluated=self.evaluate is not None,
            keep=self.kept(keep),
            exclude=tuple(sorted(types)) if by_type else tuple(map(_literal_pattern, self.kept(keep))),
            minimal=minimal,
            nodes=len(self.names),
            checks=len(self.steps),
            steps=tuple(self.steps.values()),
            points=tuple(
                replace(self.steps[s], label=labels[s], latency_ms=self.latency(s))
                for s in sorted(labels, key=len)
                if s in self.steps
            ),
            path=self.config.output,
            _candidate=self.candidate(keep),
        )

    def find(self) -> tuple[Items, Literal["good", "mixed", "bad"], bool]:
        """The nodes to keep, what that means, and whether it was checked that none of them can be lowered."""
        self.search.tests = 1
        if self.test(frozenset()):
            self.require_working_check()
            return frozenset(), "good", True
        if not self.everything or not self.search.holds(self.everything):
            return self.everything, "bad", False
        order = range(len(self.names))
        try:
            if self.config.mode == "minimal":
                return frozenset(self.search.smallest(order)), "mixed", True
            kept = order if self.config.direction == "forward" else order[::-1]
            number = self.search.least(lambda count: kept[:count], len(kept), self.config.mode)
            return frozenset(kept[:number]), "mixed", False
        except OutOfTestsError:
            return min((items for items, step in self.steps.items() if step.good), key=len), "mixed", False

    def fastest(self, fewest: Items) -> Items:
        """The fastest set that passes: the smallest, others that passed, and some with more nodes in FP32.

        A Cast between two precisions can cost more than an operator saves in 16 bit. So small gaps between nodes in
        FP32 are closed as well.
        """
        tried = sorted((items for items, step in self.steps.items() if step.good), key=len)
        sets = [fewest, *tried[:4], self.everything]
        places = sorted(fewest)
        for gap in (2, 4, len(self.names)):
            pairs = itertools.pairwise(places)
            sets.append(fewest.union(*(range(low, high) for low, high in pairs if high - low <= gap)))
        self.search = Search(self.test)  # the limit on checks is for the search; these few are checked in any case
        passing = [s for s in dict.fromkeys(sets) if (self.steps[s].good if s in self.steps else self.search.holds(s))]
        measured = {items: self.latency(items) for items in passing}
        timed = {items: latency for items, latency in measured.items() if latency is not None}
        limit = min(timed.values(), default=0.0) * _AS_FAST
        return min((items for items, latency in timed.items() if latency <= limit), key=len, default=fewest)

    def kept(self, items: Iterable[int]) -> tuple[str, ...]:
        """Names of some nodes, in the model's order."""
        return tuple(self.names[index] for index in sorted(items))

    def candidate(self, items: Items) -> Candidate:
        """The candidate that keeps these nodes."""
        return Candidate(original=self.original, keep=frozenset(self.kept(items)), config=self.config)

    def test(self, items: Items) -> bool:
        """Whether the model is accurate enough with these nodes in FP32; kept as a step."""
        started = time.perf_counter()
        names = frozenset(self.kept(items))
        if names in self.answers:
            good, excess = self.answers[names]
        elif self.evaluate is not None:
            good = self.evaluate(self.candidate(items))
            excess = 0.0 if good else math.inf
        else:
            report = self.compare(items)
            good = bool(report)
            excess = math.inf if report is None else _worst_excess(report, self.tolerances)
        step = PrecisionStep(kept=len(items), good=good, excess=excess, seconds=time.perf_counter() - started)
        self.steps[items] = step
        log.debug("%d of %d nodes kept: %s", len(items), len(self.names), step)
        if self.config.save_replay is not None:
            replay = {
                f"_N{n}": IterationContext({"keep": list(self.kept(s)), "excess": t.excess}, {"iteration": n}, t.good)
                for n, (s, t) in enumerate(self.steps.items())
            }
            save_replay(replay, self.config.save_replay)
        if self.progress is not None:
            self.progress(step)
        return good

    def compare(self, items: Items) -> ComparisonReport | None:
        """Run a candidate and compare; None if the back end does not accept it."""
        candidate = self.candidate(items)  # a local name, since weights may be in files that exist as long as it does
        try:
            with self.make(candidate) as runner:
                outputs = [{k: np.array(v) for k, v in runner.infer(feed).items()} for feed in self.feeds]
        except (errors.BackendError, errors.ModelError) as exc:
            log.warning("%d nodes kept: %s", len(items), exc)
            return None
        return compare_outputs(outputs, self.golden, self.tolerances)

    def require_working_check(self) -> None:
        """Raise a ConfigError if ``evaluate``, which has passed everything, also passes a model with outputs of 0."""
        if self.evaluate is None:
            return
        names = frozenset(self.names)
        control = Candidate(
            original=_with_outputs_of_zero(self.original), keep=names, config=self.config, is_control=True
        )
        if self.evaluate(control):
            raise errors.ConfigError(
                "The check is broken: it passes the model in lower precision, and the model with all its outputs set "
                "to 0 as well. Let it compare the outputs, and exit with another code than 0 if they are wrong."
            )

    def latency(self, items: Items) -> float | None:
        """Median latency in ms, of the back end under test, or of the model in ONNX Runtime if it is only emulated."""
        if not self.config.latency_runs or self.evaluate is not None:
            return None
        if items in self.latencies:
            return self.latencies[items]
        candidate = self.candidate(items)
        check = CheckConfig(warm_up=3, latency_runs=self.config.latency_runs)
        measured: Latency | None = None
        try:
            if self.make is emulated_runner:
                with warm_worker() as worker:  # ONNX Runtime crashes on some models in 16 bit
                    measured = worker.run(_latency_of_model, candidate.rewritten.model, self.feeds, check)
            else:
                with self.make(candidate) as runner:
                    measured = measure_latency(runner, self.feeds, check)
        except errors.BackendError as exc:
            log.warning("Latency with %d nodes kept was not measured: %s", len(items), exc)
        self.latencies[items] = None if measured is None else measured.p50_ms
        return self.latencies[items]


def _latency_of_model(model: onnx.ModelProto, feeds: list[Feed], check: CheckConfig) -> Latency | None:
    with onnxruntime_runner(model) as runner:
        return measure_latency(runner, feeds, check)


def _load_answers(path: str) -> dict[frozenset[str], tuple[bool, float]]:
    """Read a replay: for each set of nodes kept, whether it is good, and its error as a multiple of the tolerances."""
    answers = {}
    for key, context in load_replay(path).items():
        kept, excess = context.state.get("keep"), context.state.get("excess", 0.0)
        if not isinstance(kept, list):
            raise errors.ConfigError(
                f"{path}: answer {key!r} does not say which nodes were kept; expected a replay saved by `trtops debug "
                "precision`. Those of other tools answer other questions: start a new search."
            )
        answers[frozenset(map(str, kept))] = (bool(context.success), float(excess))
    return answers


def _with_outputs_of_zero(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each FP32 output multiplied by 0."""
    spoiled = onnx.ModelProto()
    spoiled.CopyFrom(model)
    graph = spoiled.graph
    outputs = {o.name for o in graph.output if o.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    made = {name for node in graph.node for name in node.output} & outputs
    for node in graph.node:
        node.name = node_name(node)  # which may be the name of an output that is renamed here
        for names in (node.output, node.input):
            names[:] = [f"{name}/right" if name in made else name for name in names]
    graph.initializer.append(onnx.helper.make_tensor("control/zero", onnx.TensorProto.FLOAT, [], [0.0]))
    for name in sorted(made):
        graph.node.append(onnx.helper.make_node("Mul", [f"{name}/right", "control/zero"], [name], f"{name}/control"))
    return spoiled


def _worst_excess(report: ComparisonReport, tolerances: Tolerances) -> float:
    """How far the worst element of all outputs is beyond both tolerances, as a multiple; infinite for NaN."""
    worst = 0.0
    for output in report.outputs:
        statistics = output.statistics
        if statistics is None or statistics.nan_errors:
            return math.inf
        own = tolerances.of(output.name)
        atol = own.largest_abs(statistics)
        if math.isinf(atol) or math.isinf(own.rtol):
            # Every element is within an infinite tolerance; only the direction is left to rank candidates by.
            worst = max(worst, 1.0 - (statistics.cosine or 0.0))
            continue
        for d, r in statistics.frontier:
            worst = max(worst, min(d / atol if atol else math.inf, r / own.rtol if own.rtol else math.inf))
        if own.max_nrmse and statistics.nrmse is not None:
            worst = max(worst, statistics.nrmse / own.max_nrmse)
    return worst


def _log_result(run: Run, result: PrecisionResult) -> None:
    metric = schema.Metric.PRECISION
    run.log_metrics(
        {
            (metric, "nodes"): result.nodes,
            (metric, "kept"): len(result.keep),
            (metric, "checks"): result.checks,
            (metric, "seconds"): result.seconds,
            (metric, "excess"): next((p.excess for p in result.points if p.label in ("found", "fastest")), 0.0),
        }
    )
    run.log_json(result, schema.Artifact.PRECISION_RESULT)
    run.log_text("".join(f"{name}\n" for name in result.keep), schema.Artifact.PRECISION_KEPT)
