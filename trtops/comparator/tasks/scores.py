"""Scores of an engine and of its model by task metrics, and the limit on what the engine may lose."""

from __future__ import annotations

import contextlib
import math
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array
from trtops.comparator.tasks.interval import CONFIDENCE, Sampled, difference_interval, mean_of
from trtops.comparator.tasks.outputs import TaskOutputs, check_count, load_labels
from trtops.lazy import function
from trtops.record import Record
from trtops.system.allowed import split_script

Decision: TypeAlias = Literal["within", "beyond", "open"]

GROUP = "trtops.metrics"
"""Entry points of further metrics: functions as those of a script."""

_OWN_DRAWS = 200
_PART = "trtops.comparator.tasks"


@dataclass(frozen=True)
class TaskMetric:
    """A metric: a function of outputs and labels, or of outputs and those of the model."""

    name: str
    better: Literal["higher", "lower"]
    measure: Callable[[TaskOutputs, Any], Sampled]
    needs_labels: bool = True


METRICS = {
    metric.name: metric
    for metric in (
        TaskMetric("top1", "higher", function(f"{_PART}.classes.top1")),
        TaskMetric("top5", "higher", function(f"{_PART}.classes.top5")),
        TaskMetric("ece", "lower", function(f"{_PART}.classes.calibration_error")),
        TaskMetric("map", "higher", function(f"{_PART}.detection.mean_ap")),
        TaskMetric("matched_boxes", "higher", function(f"{_PART}.detection.matched_boxes"), needs_labels=False),
        TaskMetric("score_drift", "lower", function(f"{_PART}.detection.score_drift"), needs_labels=False),
        TaskMetric("miou", "higher", function(f"{_PART}.classes.mean_iou")),
        TaskMetric("cer", "lower", function(f"{_PART}.text.cer")),
        TaskMetric("wer", "lower", function(f"{_PART}.text.wer")),
        TaskMetric("token_prefix", "higher", function(f"{_PART}.text.token_prefix"), needs_labels=False),
        TaskMetric("retrieval1", "higher", function(f"{_PART}.classes.retrieval1")),
        TaskMetric("retrieval5", "higher", function(f"{_PART}.classes.retrieval5")),
    )
}
TASKS = {
    "classification": ("top1", "top5", "ece"),
    "detection": ("map", "matched_boxes", "score_drift"),
    "segmentation": ("miou",),
    "text": ("cer", "wer", "token_prefix"),
    "embeddings": ("retrieval1", "retrieval5"),
}
"""The metrics of a task, which its name stands for."""


@dataclass(frozen=True, kw_only=True)
class TaskScore(Record):
    """A metric of an engine and of its model on the same samples. The loss is what the engine is worse by."""

    metric: str
    actual: float
    golden: float
    loss: float
    low: float  # of the loss, with a confidence of 95 %; infinite with fewer than two samples
    high: float
    exact: bool  # whether the interval is exact, or else from a bootstrap
    samples: int

    def decision(self, limit: float) -> Decision:
        """Compare the loss with the largest allowed one.

        It is ``within`` if the whole interval is, ``beyond`` if the loss exceeds the limit and is not explained by
        chance, and else ``open``.
        """
        if math.isnan(self.loss):
            return "beyond"
        if max(self.loss, self.high) <= limit + 1e-9:
            return "within"
        return "beyond" if self.loss > limit and self.low > 0 else "open"

    def sentence(self, reference: str = "the model") -> str:
        """The values, the loss and its interval; points are hundredths of the metric."""
        if math.isnan(self.loss):
            return f"{self.metric} is not a number, of {reference} {self.golden:.4g} ({self.samples} samples)"
        low, high = 100 * self.low, 100 * self.high
        kind = "exact" if self.exact else "bootstrap"
        return (
            f"{self.metric} is {self.actual:.4g}, of {reference} {self.golden:.4g}: a loss of {100 * self.loss:.3g} "
            f"points ({low:.3g} to {high:.3g} with {CONFIDENCE:.0%} confidence, {kind}, {self.samples} samples)"
        )

    def reason(self, limit: float, reference: str = "the model") -> str:
        """Why the loss is not within a limit; empty if it is."""
        decision = self.decision(limit)
        if decision == "within":
            return ""
        allowed = f"at most {100 * limit:.3g} points are allowed"
        text = f"{self.sentence(reference)}; {allowed}"
        return text if decision == "beyond" else f"{text}, which more labelled samples can show"


def parse_loss(text: str) -> float:
    """Return a loss such as ``0.5%`` or ``0.5 points`` as a number: both are hundredths of the metric.

    >>> parse_loss("0.5%"), parse_loss("2 points")
    (0.005, 0.02)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:%|points?)\s*", text)
    if match is None:
        raise errors.ConfigError(
            f"The loss is {text!r}; expected absolute points of the metric, such as 0.5% or '0.5 points'."
        )
    return float(match[1]) / 100


def metric_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return one name or several as a tuple; ConfigError for anything else."""
    several = (names,) if isinstance(names, str) else names
    if not isinstance(several, (list, tuple)) or not all(isinstance(name, str) for name in several):
        raise errors.ConfigError(f"found {names!r} ({type(names).__name__}); expected names of metrics")
    return tuple(several)


def task_metrics(names: Sequence[str]) -> list[TaskMetric]:
    """Return metrics by name: of a task, built in, of an entry point, or ``script.py:function``."""
    metrics = list[TaskMetric]()
    for name in names:
        if name in TASKS:
            metrics += [METRICS[part] for part in TASKS[name]]
        elif name in METRICS:
            metrics.append(METRICS[name])
        else:
            metrics.append(_own(*_load(name)))
    return list({metric.name: metric for metric in metrics}.values())


def _load(name: str) -> tuple[str, Any]:
    script, member = split_script(name)
    if member:
        from trtops.backend.common import import_from_script

        return member, import_from_script(script, member)
    import importlib.metadata  # slow

    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in points:
        errors.check_known(name, [*TASKS, *METRICS, *points], "There is no such metric (or script.py:function):")
    return name, points[name].load()


def _own(name: str, measure: Callable[[dict[str, Array], Any], Any]) -> TaskMetric:
    """Return the metric of a function of outputs by name and labels.

    The function returns a number, or a number for each sample, whose mean is the metric. Higher is better, unless it
    has an attribute ``better = "lower"``.
    """
    better: Any = getattr(measure, "better", "higher")
    if better not in ("higher", "lower"):
        raise errors.ConfigError(f"The metric {name} has better = {better!r}; expected 'higher' or 'lower'.")

    def call(arrays: dict[str, Array], labels: Any, samples: int) -> Array:
        try:
            result = measure(arrays, labels)
        except Exception as exc:
            lines = traceback.format_list(traceback.extract_tb(exc.__traceback__)[1:])
            lines += traceback.format_exception_only(exc)
            raise errors.ScriptError(f"The metric {name} failed:\n{''.join(lines).rstrip()}") from exc
        value: Array | None = None
        with contextlib.suppress(TypeError, ValueError):
            value = None if result is None else np.asarray(result, np.float64)
        if value is None or value.shape not in ((), (samples,)):
            content = f"{result!r:.60}" if value is None else f"an array {value.shape}"
            raise errors.ScriptError(f"The metric {name} returned {content}; expected a number, or {samples} of them.")
        return value

    def sampled(outputs: TaskOutputs, labels: Any) -> Sampled:
        arrays = {key: outputs.array(key) for key in outputs.iterations[0]}
        is_sequence = isinstance(labels, list) or (isinstance(labels, np.ndarray) and labels.ndim > 0)
        samples = len(labels) if is_sequence else len(next(iter(arrays.values())))
        if samples not in {len(array) for array in arrays.values()}:
            check_count(len(next(iter(arrays.values()))), samples)
        value = call(arrays, labels, samples)
        if value.ndim:
            return mean_of(value)
        if not is_sequence:
            raise errors.ScriptError(
                f"The metric {name} returned one number, whose interval needs a label for each sample, and the labels "
                f"are of type {type(labels).__name__}; expected {samples} numbers."
            )

        def statistic(weights: Array) -> Array:
            values = list[float]()
            for row in weights:
                drawn = np.repeat(np.arange(samples), row.astype(int))
                rows = {key: array[drawn] if len(array) == samples else array for key, array in arrays.items()}
                some = labels[drawn] if isinstance(labels, np.ndarray) else [labels[number] for number in drawn]
                values.append(float(call(rows, some, samples)))
            return np.array(values)

        return Sampled(samples, statistic, draws=_OWN_DRAWS)

    return TaskMetric(name, better, sampled)


def labels_for(metrics: Sequence[TaskMetric], path: str | None) -> Any:
    """Return the labels of a file; ConfigError if a metric needs them and there is no file."""
    if path is not None:
        return load_labels(path)
    for metric in metrics:
        if metric.needs_labels:
            raise errors.ConfigError(f"The metric {metric.name} needs labels (--labels FILE).")
    return None


def measure_golden(golden: TaskOutputs, metrics: Sequence[TaskMetric], labels: Any) -> list[Sampled]:
    """Measure the model's outputs by metrics; ComparisonError if the labels do not fit them."""
    measured = list[Sampled]()
    for metric in metrics:
        measured.append(metric.measure(golden, labels if metric.needs_labels else golden))
        if math.isnan(measured[-1].value):
            raise errors.ComparisonError(
                f"The metric {metric.name} is NaN for the outputs that the engine's are compared with; expected a "
                "number. Correct the metric, the labels or the data."
            )
    return measured


def score_tasks(
    actual: TaskOutputs, golden: TaskOutputs, metrics: Sequence[TaskMetric], labels: str | None
) -> tuple[TaskScore, ...]:
    """Measure an engine's outputs and the model's by metrics, with labels from a file.

    Errors as for :func:`labels_for` and :func:`measure_golden`.
    """
    loaded = labels_for(metrics, labels)
    scores = list[TaskScore]()
    for metric, theirs in zip(metrics, measure_golden(golden, metrics, loaded)):
        ours = metric.measure(actual, loaded if metric.needs_labels else golden)
        worse, better = (theirs, ours) if metric.better == "higher" else (ours, theirs)
        low, high, exact = difference_interval(worse, better)
        loss = worse.value - better.value  # which a bootstrap of a biased metric may leave out
        score = TaskScore(
            metric=metric.name, actual=ours.value, golden=theirs.value, loss=loss,
            low=min(low, loss), high=max(high, loss), exact=exact, samples=ours.samples,
        )  # fmt: skip
        scores.append(score)
    return tuple(scores)
