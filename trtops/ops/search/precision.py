"""Precision: find the nodes to keep in FP32 for a sufficiently accurate 16-bit model.

Each set of nodes is tested by writing its Casts into the ONNX model and running that.
"""

import glob
import itertools
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import onnx

from trtops import errors
from trtops.backend.base import BaseRunner
from trtops.backend.onnx import walk
from trtops.backend.onnx.emulation import emulate_low_precision
from trtops.backend.onnx.model import Model, is_lean
from trtops.backend.onnx.precision import Rewritten, lower_precision, without_functions
from trtops.backend.onnx.save import save_model
from trtops.backend.onnx.walk import node_name
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs
from trtops.next_step import NextStep, arguments_of
from trtops.ops.arguments import checked_arguments
from trtops.ops.evaluation.data import DataConfig, Feeds, collect, naming_assumed
from trtops.ops.evaluation.kept_layers import KeptLayersResult, LayerCost
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.evaluation.undefined import NanRows, Undefined, find_undefined
from trtops.ops.model.model_files import Source
from trtops.ops.result import run_step
from trtops.ops.search.command import CommandCheck
from trtops.ops.search.delta import Items, OutOfTestsError, Search, Step
from trtops.ops.search.repeat import RepeatConfig, RepeatStep, iterate, remove_files
from trtops.ops.search.search_run import search_run
from trtops.ops.search.submodel import CheckOutcome, onnxruntime_runner
from trtops.record import refuse_unused, setting
from trtops.reports.document import Chart, Point, Section
from trtops.spec import OptimizationProfile
from trtops.system.processes import temporary_prefix
from trtops.tables import listed
from trtops.terminal import one_line
from trtops.tracking import schema
from trtops.tracking.base import Tracker
from trtops.verdict import Verdict

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig(DataConfig):
    """The method of the search, its limits, and the data.

    Attributes:
        to: The lower precision.
        mode: ``minimal`` finds a set of nodes from which none can be left out. ``bisect`` and ``linear`` keep all nodes
            from one end of the model, as few as possible.
        direction: The end that ``bisect`` and ``linear`` keep: ``forward`` the beginning, ``reverse`` the end.
        tolerances: What the model must meet, compared with itself in FP32; by default what is expected of the
            precision.
        profiles: Shapes that the model has to be accurate at; see :func:`trtops.ops.evaluation.data.open_feeds`.
        exclude: Nodes that stay in FP32 in any case: names, outputs, patterns of these, or op types.
        max_checks: Maximum number of checks; the result is then the smallest set so far that passes.
        output: File for the model in mixed precision.
        load_replay: The debug replay of an earlier search, whose answers are not checked again.
        save_replay: File for a debug replay, written after each check.
    """

    to: Literal["fp16", "bf16"] = "fp16"
    mode: Literal["minimal", "bisect", "linear"] = "minimal"
    direction: Literal["forward", "reverse"] = "forward"
    tolerances: Tolerances | None = None
    profiles: tuple[OptimizationProfile, ...] = ()
    exclude: tuple[str, ...] = ()
    max_checks: int | None = setting(None, least=1)
    output: str | None = setting(None, file="writes")
    load_replay: str | None = setting(None, file="reads")
    save_replay: str | None = setting(None, file="writes", continues="load_replay")

    def __post_init__(self) -> None:
        if self.max_checks is not None and self.max_checks < 2:
            raise errors.ConfigError(f"max_checks is {self.max_checks}; expected 2 or more.")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A set of nodes to test: ``keep`` names those left in FP32. ``original`` must not be changed."""

    original: onnx.ModelProto = field(repr=False)
    keep: frozenset[str]
    config: PrecisionConfig

    # Cached, since writer and runner of one candidate both need it, and a large model takes seconds to rewrite.
    @cached_property
    def rewritten(self) -> Rewritten:
        """The model in mixed precision; inputs and outputs stay FP32."""
        # As patterns that match one name only, also if it contains wildcards.
        literal = map(glob.escape, sorted(self.keep))
        weights = Path(self._folder.name) if is_lean(self.original) else None
        return lower_precision(self.original, self.config.to, exclude=[*self.config.exclude, *literal], weights=weights)

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        # For weights; removed together with this object.
        return tempfile.TemporaryDirectory(prefix=temporary_prefix("lowered"))


MakeRunner: TypeAlias = Callable[[Candidate], BaseRunner]


def emulated_runner(candidate: Candidate) -> BaseRunner:
    """ONNX Runtime on the CPU with each 16-bit result rounded; see :mod:`trtops.backend.onnx.emulation`."""
    proto = onnx.ModelProto()
    proto.CopyFrom(candidate.rewritten.model)
    emulate_low_precision(proto)
    return onnxruntime_runner(proto)


@dataclass(frozen=True, kw_only=True)
class ModelWriter:
    """Writes a candidate to a file as an ONNX model in mixed precision."""

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
    """Yield a check of candidates: the model is written, a command runs, and the files left behind are sorted."""
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
class PrecisionResult(KeptLayersResult):
    """The result of a precision search."""

    # good: all nodes can be lowered; mixed: some must be kept; bad: the tolerances are not met with all of them kept.
    outcome: Literal["good", "mixed", "bad"]
    to: Literal["fp16", "bf16"] = "fp16"
    minimal: bool  # it was checked that no single node of keep can be lowered
    nodes: int  # that can be lowered
    checks: int
    seconds: float = 0.0
    steps: tuple[Step, ...]  # the first is the check of the model with all nodes lowered
    excess: float | None = None  # largest error over what is allowed; None if a command or function checked it
    path: str | None = None

    @property
    def verdict(self) -> Verdict:
        """``bad`` if no set of nodes is enough."""
        return "bad" if self.outcome == "bad" else "good"

    @property
    def next_step(self) -> NextStep | None:
        """Build the model in mixed precision, if it was written."""
        if not (self.run_id and self.path and self.verdict == "good"):
            return super().next_step
        arguments = {"model": self.path, "backend": "onnxruntime", "experiment": self.experiment}
        return NextStep.after(self.options, "convert", arguments)

    def sections(self) -> Iterator[Section]:
        """The result, with a chart of accuracy against the number of nodes kept."""
        points = tuple(
            Point(label=f"check {n.number}", x=float(n.size), y=n.excess, tone="good" if n.verdict == "pass" else "bad")
            for n in self.steps
            if n.excess is not None and math.isfinite(n.excess)
        )
        title, x, y = f"{self.to.upper()} model", "nodes kept in FP32", "largest error / allowed error"
        chart = Chart(title=title, form="points", points=points, x=x, y=y)
        lines = "".join(f"- {line}.\n" for line in map(one_line, (*self.because, self.figures)) if line)
        yield Section(text=lines, chart=chart if points else None)
        if self.layers:
            yield Section(text=self.layer_table())

    @property
    def because(self) -> tuple[str, ...]:
        """The nodes to keep, or why none help."""
        if self.outcome == "good":
            unfailing = "The check has not failed once: make sure that it fails for wrong outputs"
            return (f"All {self.nodes} nodes can be lowered", *([unfailing] if self.excess is None else []))
        if self.outcome == "mixed":
            return (f"{len(self.keep)} of {self.nodes} nodes must stay in FP32: {listed(self.keep)}",)
        if failure := next((step.detail for step in self.steps if step.size == self.nodes and step.detail), ""):
            return (f"The model does not run, even with every node in FP32: {failure.strip().splitlines()[0]}",)
        return ("Even with every node in FP32 the outputs are not accurate enough, or the check is broken",)

    @property
    def figures(self) -> str:
        """The largest error, and the file."""
        parts = []
        if self.excess is not None:
            lowered = self.steps[0].excess
            without = "does not run" if lowered is None else f"{lowered:.3g} times"
            parts.append(f"largest error {self.excess:.3g} times what is allowed (all in {self.to.upper()}: {without})")
        if self.path is not None:
            parts.append(f"wrote {self.path}")
        return ", ".join(parts)


@checked_arguments
def precision(
    model: Source,
    config: PrecisionConfig = PrecisionConfig(),
    *,
    runner: MakeRunner = emulated_runner,
    evaluate: Callable[[Candidate], bool] | None = None,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    file: str | Path | None = None,
    progress: Callable[[Step], None] | None = None,
) -> PrecisionResult:
    """Find the nodes to keep in FP32.

    ``runner`` makes the runner of a candidate: :func:`emulated_runner`, that of an
    :class:`~trtops.ops.search.precision_engines.EngineWriter`, or one that builds ``candidate.rewritten.model``.
    ``evaluate`` says whether a candidate is good, instead of running and comparing it (:func:`checking_candidates` runs
    a command); then no data is generated. ``file`` names a model in memory.
    ConfigError if an excluded name matches nothing, or the output is the model's own file.

    >>> trtops.precision("model.onnx", trtops.PrecisionConfig(to="bf16")).headline
    'good'
    """
    if evaluate is not None:
        unused = ("data", "input_shapes", "iterations", "seed", "tolerances")
        used = " ".join(field.name for field in fields(config) if field.name not in unused)
        refuse_unused(config, {"": used}, op="precision with a check")
    with search_run(
        "precision", model, file, tracker=tracker, experiment=experiment, tags=tags, parent=parent
    ) as search:
        nodes = _PrecisionSearch(search.model, config, runner, evaluate, progress)
        result, candidate = run_step("search", nodes.run)
        result = replace(result, seconds=search.seconds)
        if config.output is not None:
            save_model(candidate.rewritten.model, config.output)
        search.op.run.log_params({"model": search.model.name, **config.to_dict()})
        search.op.run.log_text("".join(f"{name}\n" for name in result.keep), schema.Artifact.PRECISION_KEPT)
        numbers = {name: getattr(result, name) or 0.0 for name in ("nodes", "checks", "seconds", "excess")}
        numbers["kept"] = len(result.keep)
        return search.finish(result, schema.Metric.PRECISION, numbers, schema.Artifact.PRECISION_RESULT)


@dataclass
class _PrecisionSearch:
    """One search under way. Nodes are numbered in the model's order; sets of them are kept in FP32."""

    model: Model
    config: PrecisionConfig
    make: MakeRunner
    evaluate: Callable[[Candidate], bool] | None
    progress: Callable[[Step], None] | None

    def __post_init__(self) -> None:
        model, config = self.model, self.config
        self.original = without_functions(model.proto(lean=True))
        lowered = set(lower_precision(self.original, config.to, exclude=config.exclude).lowered)
        self.ops: dict[str, str] = {}  # of the nodes that can be lowered, in the model's order
        for node in walk.nodes(self.original):
            if node_name(node) in lowered:
                self.ops.setdefault(node_name(node), node.op_type)
        self.names = list(self.ops)
        self.everything = frozenset(range(len(self.names)))
        self.tolerances = tolerances_for(config.to, config.tolerances, model)
        opened = config.open_for(model, profiles=config.profiles)
        self.feeds = [] if self.evaluate else list(map(dict, opened))
        with naming_assumed(model, opened):
            self.golden = list(map(dict, reference_outputs(self.original, self.feeds))) if self.feeds else []
        nan = NanRows.of(model, self.feeds)
        undefined = find_undefined(model, self.feeds, nan, config.tolerances) if self.feeds else Undefined()
        if undefined.reasons:
            raise errors.InputError(f"No precision is good enough on this data: {'; '.join(undefined.reasons)}.")
        self.search = Search(self.test, max_tests=config.max_checks, progress=self.progress)
        # Answers of a replay only hold for the same question.
        depends_on = {
            "model": model.info.sha256,
            "precision": f"{config.to} without {', '.join(config.exclude) or 'exceptions'}",
            "check": "a command or function" if self.evaluate else f"tolerances {self.tolerances.digest}",
            "data": "" if self.evaluate else Feeds("", lambda: self.feeds).digest(),
        }
        self.search.use_replays(config.load_replay, config.save_replay, len(self.names), depends_on)

    def run(self) -> tuple[PrecisionResult, Candidate]:
        """Search; return the result, and its candidate."""
        keep, outcome, minimal = self.find()
        step = self.search.answers.get(keep)
        candidate = self.candidate(keep)
        names = tuple(self.names[index] for index in sorted(keep))
        result = PrecisionResult(
            outcome=outcome,
            to=self.config.to,
            keep=names,
            layers=tuple(LayerCost(layer=name, op=self.ops[name], keep=True) for name in names),
            minimal=minimal,
            nodes=len(self.names),
            checks=len(self.search.steps),
            steps=tuple(self.search.steps),
            excess=None if step is None else step.excess,
            path=self.config.output,
            options=arguments_of(self.config),
        )
        return result, candidate

    def find(self) -> tuple[Items, Literal["good", "mixed", "bad"], bool]:
        """The nodes to keep, the outcome, and True if each of them was tested to be necessary."""
        # Most models need nothing in FP32, so that is tested first; with all nodes in FP32 the check itself is tested.
        if self.search.holds_for_none():
            return frozenset(), "good", True
        if not self.everything or not self.search.holds(self.everything):
            return self.everything, "bad", False
        order = range(len(self.names))
        try:
            if self.config.mode == "minimal":
                return frozenset(self.search.smallest(order)), "mixed", True
            candidates = order if self.config.direction == "forward" else order[::-1]
            number = self.search.least(lambda count: candidates[:count], len(candidates), self.config.mode)
            return frozenset(candidates[:number]), "mixed", False
        except OutOfTestsError:
            return self.search.smallest_so_far(), "mixed", False

    def candidate(self, items: Items) -> Candidate:
        """The candidate with these nodes in FP32."""
        keep = frozenset(self.names[index] for index in items)
        return Candidate(original=self.original, keep=keep, config=self.config)

    def test(self, items: Items) -> CheckOutcome:
        """Whether the model is accurate enough with these nodes in FP32."""
        candidate = self.candidate(items)  # a local name, since weights may be in files that exist as long as it does
        if self.evaluate is not None:
            return CheckOutcome.of(self.evaluate(candidate))
        try:
            with self.make(candidate) as runner:
                outputs = collect(runner, self.feeds)
        # Some mixtures of precisions do not build or run: that is an answer about this set of nodes.
        except (errors.BackendError, errors.InvalidModelError) as exc:
            log.warning("%d nodes kept: %s", len(items), exc)
            return CheckOutcome(verdict="fail", detail=str(exc))
        report = compare_outputs(outputs, self.golden, self.tolerances)
        return CheckOutcome(verdict="pass" if report else "fail", excess=_worst_excess(report, self.tolerances))


def _worst_excess(report: ComparisonReport, tolerances: Tolerances) -> float:
    """How far the worst element of all outputs is beyond both tolerances, as a multiple; infinite for NaN."""
    worst = 0.0
    for output in report.outputs:
        statistics = output.statistics
        if statistics is None or statistics.nan_errors:
            return math.inf
        limits = tolerances.of(output.name)
        atol = limits.largest_abs(statistics)
        if math.isinf(atol) or math.isinf(limits.rtol):
            # Every element is within an infinite tolerance; only the direction is left to rank candidates by.
            worst = max(worst, 1.0 - (statistics.cosine or 0.0))
            continue
        for d, r in statistics.frontier:
            worst = max(worst, min(d / atol if atol else math.inf, r / limits.rtol if limits.rtol else math.inf))
        if limits.max_nrmse and statistics.nrmse is not None:
            worst = max(worst, statistics.nrmse / limits.max_nrmse)
    return worst
