"""Evaluate an engine: its outputs against golden ones, its task metrics on labels, its latency."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from trtops import errors
from trtops.backend.base import BaseRunner, Feed
from trtops.calibration.data import data_source
from trtops.comparator.arrays import as_arrays, copied
from trtops.comparator.report import ComparisonReport, Outputs, Tolerances, compare_outputs, iterations_of
from trtops.comparator.results import RunResults
from trtops.comparator.table import METRICS
from trtops.comparator.tasks.outputs import TaskOutputs
from trtops.comparator.tasks.scores import (
    Decision,
    TaskScore,
    labels_for,
    measure_golden,
    metric_names,
    parse_loss,
    score_tasks,
    task_metrics,
)
from trtops.ops.evaluation.data import DataConfig, Emulation, Feeds, collect
from trtops.ops.evaluation.evidence import Evidence, SeenFeeds
from trtops.ops.evaluation.export_check import ExportCheck, ExportedModel
from trtops.ops.evaluation.limits import NoiseLimits
from trtops.ops.evaluation.power import Power, measure_power
from trtops.ops.evaluation.precision_check import PrecisionCheck
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.evaluation.self_check import SelfCheck, check_engine, check_repeated
from trtops.ops.evaluation.undefined import Undefined
from trtops.ops.result import run_step, step_time
from trtops.record import Config, Record, setting
from trtops.spec import BuildConfig
from trtops.tables import markdown_table
from trtops.tracking import schema
from trtops.tracking.base import MetricName, Run, Verdict
from trtops.verdict import BadIn

# More than these would bury the metrics that a person sorts by.
_MAX_LOGGED_OUTPUTS = 8
# MLflow shows infinity as 1.7976931348623157e+308, and "1.79..." in a narrow column.
_MOST_OF_LIMIT = 1e9

_ONLY_RANDOM = (
    "rounding alone explains the errors, but on random data, which real data may not resemble; give --load-inputs FILE"
)

# Fifty inferences of a large batch on a processor took longer than everything else.
_WARM_UP_SECONDS, _LATENCY_SECONDS, _MIN_LATENCY_RUNS = 0.5, 1.0, 5


@dataclass(frozen=True, kw_only=True)
class CheckConfig(DataConfig):
    """The evaluation of an engine, and its data.

    Attributes:
        golden: Saved outputs to compare with (``.json`` or ``.npz``), of the given data or, without data, of a plain
            ``trtops run``; by default those of the model in ONNX Runtime, in its own precision and without
            optimization.
        metric: Task metrics to report, which need labels as a rule: a task (``classification``, ``detection``,
            ``segmentation``, ``text``, ``embeddings``), one metric, or ``script.py:function``. By default ``top1`` if
            there are labels.
        labels: The file of labels, one for each sample: ``.npy``, ``.npz``, ``.json`` (COCO's for detection), or a
            ``.txt`` with a line for each.
        loss: What the engine may lose of each metric compared with the model, in points of the metric, such as
            ``0.5%``. Without it metrics are reported and decide nothing.
        tolerances: When outputs are good enough; by default limits from what rounding to the precision does to the
            model on this data (:mod:`trtops.ops.evaluation.limits`).
        warm_up: Inferences before latency is measured; fewer, but at least one, if they take over half a second.
        latency_runs: Inferences whose latency is measured, on the first feed; fewer, but at least 5, if they take over
            a second; 0 measures none.
        plots: When heat maps and error plots are drawn and logged.
        min_precision_share: The share of kernels, between 0 and 1, that must compute in the requested precision or
            a narrower one; 0 requires one kernel. Where ONNX Runtime computes FP16 and BF16 in FP32, they are emulated
            instead, unless a share above 0 is required.
        power: Plant up to 40 random faults into the golden outputs, one at a time, and report how many of them this
            comparison sees.
        self_check: Check the engine's results against each other (:mod:`trtops.ops.evaluation.self_check`). By default
            gates and audits do, and a conversion checks what costs no inference.
    """

    golden: str | None = setting(None, file="reads")
    metric: tuple[str, ...] = setting((), convert=metric_names, file="reads")
    labels: str | None = setting(None, file="reads")
    loss: str | None = None
    tolerances: Tolerances | None = None
    warm_up: int = 5
    latency_runs: int = 50
    plots: Literal["always", "bad", "never"] = "bad"
    min_precision_share: float = setting(0.0, most=1)
    power: bool = False
    self_check: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min_precision_share <= 1:
            raise errors.ConfigError(
                f"min_precision_share is {self.min_precision_share}; expected a share between 0 and 1."
            )
        if self.loss is not None:
            parse_loss(self.loss)
            if not self.metrics:
                raise errors.ConfigError(
                    f"loss={self.loss!r} limits the loss of a metric, but there is no metric: give metric or labels."
                )

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the task metrics; with labels alone, the share of right classes."""
        return self.metric or (() if self.labels is None else ("top1",))

    @property
    def allowed_loss(self) -> float | None:
        """The largest loss of a task metric as a number."""
        return None if self.loss is None else parse_loss(self.loss)


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Config):
    """An engine and its evaluation: the base of configs of ops that build engines.

    Attributes:
        build: How the engine is built.
        check: How it is evaluated, and on what data.
        calibration_data: Data source for INT8 calibration; the check's own data by default.
        calibration_cache: A calibration cache file to build INT8 with, instead of calibrating.
    """

    build: BuildConfig = field(default_factory=BuildConfig)
    check: CheckConfig = field(default_factory=CheckConfig)
    calibration_data: str | None = setting(None, convert=data_source, file="reads")
    calibration_cache: str | None = setting(None, file="reads")


@dataclass(frozen=True, kw_only=True)
class Latency(Record):
    """Wall time of one inference inside the back end; ``device_p50_ms`` is on the accelerator, without copies."""

    p50_ms: float
    p99_ms: float
    mean_ms: float
    runs: int
    device_p50_ms: float | None = None

    def text(self) -> str:
        """The percentiles."""
        device = "" if self.device_p50_ms is None else f"; on the device p50 {self.device_p50_ms:.3f} ms"
        return f"p50 {self.p50_ms:.3f} ms, p99 {self.p99_ms:.3f} ms{device}"


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """The evaluation of one engine or runner, with all measured parts."""

    report: ComparisonReport  # the comparison with the golden outputs
    latency: Latency | None = None
    tasks: tuple[TaskScore, ...] = ()  # task metrics on labelled data
    allowed_loss: float | None = None  # of each task metric; None limits none
    computed: PrecisionCheck | None = None  # the precisions that the kernels compute in; None without a build
    emulated: Emulation | None = None  # the model in 16 bit as a GPU rounds it; None if it was not needed
    evidence: Evidence | None = None  # None for saved outputs, whose inputs are not known
    power: Power | None = None  # None if it was not requested
    noise: NoiseLimits | None = None  # the model's own noise, from which the limits are derived; None if they are given
    self_check: SelfCheck | None = None
    foreign_golden: str = ""  # why given golden outputs are not those of the model; empty if they are
    export: ExportCheck | None = None  # of a PyTorch model, compared with its export

    @property
    def verdict(self) -> Verdict:
        """``good`` for good outputs at all shapes, in the requested precision, on sufficient data.

        ``unproven`` also if rounding alone explains every fault, on random data: of assumed shapes, or in FP32.
        """
        stage = "good" if self.export is None else self.export.verdict
        if stage == "bad" or ((self._faults or not self.report) and not self._rounding_explains):
            return "bad"
        is_open = self._rounding_explains or self._unproven or self._losses("open")
        return "unproven" if is_open else stage

    @property
    def figures(self) -> tuple[str, ...]:
        """The latency, if it was measured, and each task metric with that of the model."""
        tasks = (f"{task.metric} {task.actual:.4g} (model {task.golden:.4g})" for task in self.tasks)
        return (*(() if self.latency is None else (self.latency.text(),)), *tasks)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not good, one sentence each."""
        lost = () if self.export is None else self.export.reasons
        if self._rounding_explains:
            return (*lost, self._unproven or _ONLY_RANDOM, *self._faults)
        undecided = (*filter(None, (self._unproven,)), *self._losses("open")) if self.report else ()
        return (*lost, *(self._faults or undecided))

    def _losses(self, decision: Decision) -> tuple[str, ...]:
        """Sentences on task metrics whose loss has a decision."""
        limit = self.allowed_loss
        return () if limit is None else tuple(t.reason(limit) for t in self.tasks if t.decision(limit) == decision)

    @property
    def _unproven(self) -> str:
        return "" if self.evidence is None else self.evidence.missing

    @property
    def _rounding_explains(self) -> bool:
        """True if rounding explains all faults, on data insufficient for blaming the precision.

        That is random data of assumed shapes, and any random data in FP32.
        """
        if self.noise is None or self.evidence is None or self._lacks_precision or self.foreign_golden:
            return False
        if not self.evidence.assumed and not (self.evidence.random and self.noise.precision == "fp32"):
            return False
        bad = {output.name for output in self.report.bad}
        holds = self.self_check is None or self.self_check.verdict != "bad"
        return bool(bad) and bad <= dict((*self.noise.insufficient, *self.noise.lost)).keys() and holds

    @property
    def _faults(self) -> tuple[str, ...]:
        # First what explains the errors that follow: other golden outputs, or that the precision does not suffice.
        faults = () if self.noise is None or self._rounding_explains else self.noise.reasons(self.report)
        faults = (self.foreign_golden,) if self.foreign_golden else faults
        faults += self.report.reasons + (() if self.emulated is None else self.emulated.reasons)
        # All feeds together may hide an error that only some of them have.
        if self.report and self.evidence is not None:
            for entry in self.evidence.shapes:
                if entry.verdict == "bad":
                    faults += tuple(f"{reason}, at {entry.text()}" for reason in entry.reasons)
        if self.self_check is not None:
            faults += self.self_check.reasons
        faults += self._losses("beyond")
        if self.computed is not None and self._lacks_precision:
            rounded = f" The model does not run rounded to {self.computed.requested.upper()} either."
            faults += (self.computed.reason() + (rounded if self.computed.emulation_counts else ""),)
        return faults

    def leaving_out(self, denied: tuple[str, ...]) -> Evaluation:
        """The evaluation of a build without denied choices, each with its reason."""
        return self if self.evidence is None else replace(self, evidence=replace(self.evidence, denied=denied))

    @property
    def blind(self) -> tuple[str, ...]:
        """What the data never exercises, in phrases."""
        return () if self.evidence is None else self.evidence.blind

    @property
    def bad_in(self) -> tuple[BadIn, ...]:
        """Which parts are bad; empty if it is not bad."""
        if self._rounding_explains:
            return ()
        bad_shapes = self.evidence is not None and any(entry.verdict == "bad" for entry in self.evidence.shapes)
        bad_emulation = self.emulated is not None and self.emulated.verdict == "bad"
        broken = self.self_check is not None and self.self_check.verdict == "bad"
        outputs_are_bad = not self.report or bad_shapes or bad_emulation or broken or bool(self._losses("beyond"))
        return (*(("outputs",) if outputs_are_bad else ()), *(("precision",) if self._lacks_precision else ()))

    @property
    def _lacks_precision(self) -> bool:
        if self.computed is None:
            return False
        return self.emulated is None if self.computed.emulation_counts else not self.computed.lowered


def evaluate(
    runner: BaseRunner,
    golden: RunResults,
    feeds: Feeds,
    config: CheckConfig,
    right: RightModel,
) -> tuple[Evaluation, RunResults]:
    """Run an engine's active runner, compare its outputs with golden ones and with each other; also the outputs.

    Latency and task metrics are measured as the config requests. Limits that it does not give are those of the right
    model.

    InputError if a feed does not fit the model; ComparisonError if the numbers of feeds and golden outputs differ.
    """
    seen = SeenFeeds(feeds)
    outputs = run_step("run", collect, runner, seen)
    tolerances = right.tolerances(config.tolerances)
    last: dict[str, Any] = {}
    with step_time("measure latency"):
        latency = measure_latency(runner, feeds, config, last)
    checked = None
    if config.self_check:
        results = iterations_of(outputs, "actual")
        checked = run_step("self-check", check_engine, runner, right.model, feeds, results, right.build, thorough=True)
    elif config.self_check is None and last:
        sizes = [sum(map(math.prod, shapes.values())) for _, _, shapes in seen.places]
        pair = iterations_of(outputs, "actual")[0], last
        checked = check_repeated(right.model, feeds, pair, right.build, after_larger=max(sizes) > sizes[0])
    evaluation = run_step("compare", assess, outputs, golden, latency, config, tolerances, feeds, seen, right)
    return replace(evaluation, self_check=checked), outputs


def assess(
    outputs: RunResults,
    golden: RunResults,
    latency: Latency | None,
    config: CheckConfig,
    tolerances: Tolerances,
    feeds: Feeds | None = None,
    seen: SeenFeeds | None = None,
    right: RightModel | None = None,
) -> Evaluation:
    """Compare outputs with golden ones, and measure task metrics if there are any; errors as for :func:`evaluate`.

    ``feeds`` are the inputs, and ``seen`` has read them; without them the evaluation has no evidence. The tolerances
    are those of ``right`` unless the config gives them.
    """
    noise = right.noise if right is not None and config.tolerances is None else None
    undefined = Undefined() if right is None else right.undefined(config.tolerances)
    aligned_outputs: Outputs = outputs
    aligned_golden: Outputs = golden
    if right is not None and noise is not None:
        aligned_outputs, aligned_golden = right.aligned(outputs), right.aligned(golden)
    ours, theirs = undefined.comparable(aligned_outputs, aligned_golden)
    report = compare_outputs(ours, theirs, tolerances)
    for name in () if config.tolerances is None else config.tolerances.per_output:
        errors.check_known(
            name, [output.name for output in report.outputs], "The tolerances are for an output that does not exist:"
        )
    evidence, data_iterations, foreign = None, report.iterations, ""
    exported = right.model.check if right is not None and isinstance(right.model, ExportedModel) else None
    elements = sum(statistics.elements for statistics in report.statistics.values())
    if right is not None and config.golden is not None and not report:
        model_report = compare_outputs(*undefined.comparable(right.plain, aligned_golden), tolerances)
        if not model_report:
            foreign = (
                f"the golden outputs are not this model's: its own outputs differ as well ({model_report.decided_by}), "
                "so they are of other data or another model, or it was exported wrongly"
            )
    if feeds is not None and seen is not None:
        data_iterations = seen.given
        evidence = Evidence(
            source=feeds.source,
            random=feeds.random,
            data_sha256=seen.digest.hexdigest(),
            feeds=seen.covered.feeds,
            samples=seen.covered.samples,
            rows=seen.covered.rows,
            shapes=seen.entries(
                iterations_of(ours, "actual"),
                iterations_of(theirs, "golden"),
                tolerances,
                right.tolerances_of if right is not None and noise is not None else None,
            ),
            assumed=feeds.assumed,
            reference="the model in ONNX Runtime, not optimized" if config.golden is None else config.golden,
            limits="given ones" if config.tolerances else "fixed ones" if noise is None else noise.sentence(report),
            margin=report.decided_by if elements or not report else "nothing was compared",
            elements=elements,
            blind=seen.covered.blind(theirs),
            undefined=undefined.reasons,
            constant=seen.covered.constant_outputs(theirs),
            export="" if exported is None else exported.sentence(),
        )
    # Labels are for the given data, not for its copies at other shapes.
    tasks = measure_tasks(outputs, golden, config, tolerances, data_iterations)
    return Evaluation(
        report=report,
        latency=latency,
        tasks=tasks,
        allowed_loss=config.allowed_loss,
        evidence=evidence,
        noise=noise,
        foreign_golden=foreign,
        export=exported,
    )


def with_power(evaluation: Evaluation, golden: Outputs, config: CheckConfig, tolerances: Tolerances) -> Evaluation:
    """The evaluation with its power, if ``config`` requests it."""
    if not config.power:
        return evaluation
    evidence = evaluation.evidence
    if evidence is not None and evidence.undefined:
        return replace(evaluation, power=Power(why_not="the golden outputs are not defined"))
    shapes = () if evidence is None else evidence.shapes
    return replace(evaluation, power=run_step("measure power", measure_power, golden, tolerances, shapes))


def measure_latency(
    runner: BaseRunner, feeds: Iterable[Feed], config: CheckConfig, last: dict[str, Any] | None = None
) -> Latency | None:
    """Latency of an active runner on the first feed; None if ``config`` asks for no measurement.

    ``last`` receives a copy of the results of the last inference.
    """
    if config.latency_runs < 1:
        return None
    # One feed only, because other shapes would mix different latencies.
    feed = next(iter(feeds))
    seconds: list[float] = []
    on_device: list[float] = []
    start = time.perf_counter()
    for _ in range(config.warm_up):
        runner.infer(feed, check_inputs=False)
        if time.perf_counter() - start > _WARM_UP_SECONDS:
            break
    start = time.perf_counter()
    while len(seconds) < config.latency_runs:
        outputs = runner.infer(feed, check_inputs=False)
        seconds.append(runner.inference_time)
        if (device := runner.last_device_time()) is not None:
            on_device.append(device)
        if len(seconds) >= _MIN_LATENCY_RUNS and time.perf_counter() - start > _LATENCY_SECONDS:
            break
    if last is not None:
        last |= copied(outputs)
    # The host's time includes copies; the median on the device does not, and shows what the kernels need.
    p50, p99 = (np.percentile(seconds, [50, 99]) * 1e3).tolist()
    device = float(np.median(on_device)) * 1e3 if on_device else None
    mean = float(np.mean(seconds)) * 1e3
    return Latency(p50_ms=p50, p99_ms=p99, mean_ms=mean, runs=len(seconds), device_p50_ms=device)


def measure_tasks(
    actual: RunResults, golden: RunResults, config: CheckConfig, tolerances: Tolerances, iterations: int | None = None
) -> tuple[TaskScore, ...]:
    """Return the task metrics of a check; those of the model are from golden outputs.

    Only the first ``iterations`` count, by default all. Errors as for
    :func:`trtops.comparator.tasks.scores.score_tasks`.
    """
    if not config.metrics:
        return ()
    ours, theirs = (_labelled(results, tolerances, iterations) for results in (actual, golden))
    return run_step("measure metrics", score_tasks, ours, theirs, task_metrics(config.metrics), config.labels)


def check_labels(golden: RunResults, config: CheckConfig, tolerances: Tolerances, iterations: int | None) -> None:
    """Raise ComparisonError if the labels of a check do not fit golden outputs; ``iterations`` as above."""
    metrics = task_metrics(config.metrics)
    measure_golden(_labelled(golden, tolerances, iterations), metrics, labels_for(metrics, config.labels))


def _labelled(results: RunResults, tolerances: Tolerances, iterations: int | None) -> TaskOutputs:
    counted = list(map(as_arrays, iterations_of(results, "labelled")[:iterations]))
    axes = {name: axis for name in counted[0] if (axis := tolerances.of(name).class_axis) is not None}
    return TaskOutputs(counted, axes)


def evaluation_metrics(evaluation: Evaluation) -> dict[MetricName, float]:
    """The metrics of an evaluation for sorting runs; all other numbers are in its artifact.

    ``("error", name)`` is the worst value of all outputs, without relative errors of elements near 0, and
    ``("error", "of_limit")`` the largest share of a limit that an error takes, also in emulated 16 bit, above 1 if it
    exceeds the limit, and 1e9 at most. A model with several outputs, but not more than 8, has
    ``("error", output, "max_abs")`` for each.
    """
    recorded: dict[MetricName, float] = {}
    report = evaluation.report
    measured = report.statistics
    for metric in METRICS:
        numbers: list[float] = []
        for statistics in measured.values() if metric.logged else ():
            value = getattr(statistics, metric.name)
            # Above 1, the error is larger than its element: unless it exceeds the scale too, the element is near 0.
            near_zero = metric.name == "max_rel" and (value or 0) > 1 and statistics.max_abs < (statistics.scale or 0)
            numbers += [] if value is None or near_zero else [float(value)]
        if numbers:
            worst = max(numbers) if metric.better == "lower" else min(numbers)
            # max() and min() keep or drop NaN depending on the order.
            recorded[schema.Metric.ERROR, metric.name] = math.nan if any(map(math.isnan, numbers)) else worst
    if 1 < len(measured) <= _MAX_LOGGED_OUTPUTS:
        for name, statistics in measured.items():
            recorded[schema.Metric.ERROR, name, "max_abs"] = float(statistics.max_abs)
    # A model that is bad in 16 bit as a GPU rounds it is above its limit, although ONNX Runtime computes in FP32.
    margins = [report.margin] if evaluation.emulated is None else [report.margin, evaluation.emulated.report.margin]
    shares = [margin.used for margin in margins if margin is not None]
    if shares:
        recorded[schema.Metric.ERROR, "of_limit"] = min(max(shares), _MOST_OF_LIMIT)
    for name in ("p50_ms", "p99_ms", "device_p50_ms"):
        milliseconds = getattr(evaluation.latency, name, None)
        if milliseconds is not None:
            recorded[schema.Metric.LATENCY, name] = milliseconds
    for score in evaluation.tasks:
        recorded[schema.Metric.ACCURACY, score.metric] = score.actual
        recorded[schema.Metric.ACCURACY, f"golden_{score.metric}"] = score.golden
        for part in ("loss", "low", "high"):
            recorded[schema.Metric.LOSS, score.metric, part] = getattr(score, part)
    if evaluation.computed is not None and evaluation.computed.share is not None:
        recorded[schema.Metric.KERNELS_LOWERED] = evaluation.computed.share
    if (power := evaluation.power) is not None and power.share is not None:
        recorded[schema.Metric.POWER_SEEN] = power.share
    if (checked := evaluation.self_check) is not None:
        recorded[schema.Metric.SELF_CHECK_BROKEN] = float(len(checked.named("broken")))
    return recorded


def describe(evaluation: Evaluation) -> list[str]:
    """An evaluation in lines of Markdown: a table of the outputs, latency, task metrics."""
    columns, rows = evaluation.report.table()
    return [markdown_table(columns, rows), "", *describe_measurements(evaluation)]


def describe_measurements(evaluation: Evaluation) -> list[str]:
    """The parts of an evaluation other than the table of outputs, in lines of Markdown."""
    lines: list[str] = []
    if evaluation.evidence is not None:
        lines += [f"Evidence: {evaluation.evidence.sentence()}.", ""]
        if len(shapes := evaluation.evidence.shapes) > 1:
            rows = ([e.text(), e.verdict, "-" if e.max_abs is None else f"{e.max_abs:.3g}"] for e in shapes)
            lines += [markdown_table(("shapes", "verdict", "largest error"), rows), ""]
    if evaluation.power is not None:
        lines += [evaluation.power.sentence(evaluation.blind), "", evaluation.power.table(), ""]
    elif evaluation.evidence is not None and evaluation.blind:
        lines += [evaluation.evidence.coverage(), ""]
    if evaluation.latency is not None:
        lines += [f"Latency: {evaluation.latency.text()}.", ""]
    for part in (evaluation.computed, evaluation.emulated, evaluation.self_check):
        if part is not None:
            lines += [part.sentence(), ""]
    lines += [line for score in evaluation.tasks for line in (f"{score.sentence()}.", "")]
    return lines


def log_evaluation(run: Run, evaluation: Evaluation, *, engine: str = "") -> None:
    """Log an evaluation: its numbers as metrics, the whole as an artifact; ``engine`` as for ``Run.log_metrics``."""
    if (evidence := evaluation.evidence) is not None:
        names = ("source", "feeds", "samples", "reference", "limits", "margin", "denied")
        params = {name: getattr(evidence, name) for name in names}
        params["shapes"] = "; ".join(dict.fromkeys(entry.text() for entry in evidence.shapes))[: schema.MAX_TAG]
        params["data"] = evidence.data_sha256[: schema.DATA_DIGITS]
        run.log_params({"evidence": params})
    run.log_metrics(evaluation_metrics(evaluation), engine=engine)
    run.log_json(evaluation, schema.Artifact.ACCURACY)
