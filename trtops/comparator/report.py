"""Compare a whole run with a golden one: statistics for each output first, verdicts derived from them.

Only :func:`compare_outputs` reads arrays. A stored report can be re-evaluated under other tolerances.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from trtops import errors
from trtops.comparator import metrics
from trtops.comparator.arrays import Array, dtype_name, largest_within, to_numpy
from trtops.comparator.metric_results import ErrorStat
from trtops.comparator.metrics import ChannelErrors, OutputStatistics
from trtops.comparator.table import LIMITED, METRICS, Metric, with_fields
from trtops.record import Config, Record, setting
from trtops.terminal import one_line
from trtops.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

    from trtops.comparator.results import RunResults

Outputs: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any]] | RunResults"
"""Outputs of a run: arrays by name, a sequence of these (one per iteration), or the results of one runner."""


@dataclass(frozen=True, kw_only=True)
@with_fields({str(metric.tolerance): "" for metric in LIMITED})
class OutputTolerances(Config):
    """Tolerances of one output (default: the values of :class:`Tolerances`)."""

    atol: float | None = setting(None, infinite=True)
    rtol: float | None = setting(None, infinite=True)
    atol_of_scale: float | None = setting(None, infinite=True)
    class_axis: int | None = setting(None, least=None)
    channels: ChannelErrors | None = None
    check_error_stat: ErrorStat | None = None
    error_quantile: float | None = setting(None, most=1)


@dataclass(frozen=True, kw_only=True)
@with_fields(
    {
        str(m.tolerance): f"The {m.limit_kind} allowed {m.described}, for {m.applies_to}; None sets no limit."
        for m in LIMITED
    }
)
class Tolerances(Config):
    """When an output counts as good.

    The table of metrics (:mod:`trtops.comparator.table`) adds fields that limit single metrics. What is not a number
    follows one rule, which no limit of an error changes:

    - A missing output or another shape is bad, and so is an extra output unless ``allow_extra_outputs``.
    - Another dtype is bad if ``check_dtypes``, apart from INT32 for INT64.
    - NaN is bad, also where the golden output has NaN, unless ``nans_equal`` and both are at the same place.
    - Infinity equals infinity of the same sign if ``infinities_equal``, and with ``clamped_equal`` also a large number
      of its sign. Any other infinity is an infinite error, which exceeds every finite limit.
    - Strings must be equal. Integers and booleans follow ``min_agreement`` alone if it is set.

    Attributes:
        atol: Absolute tolerance, in the output's own unit.
        rtol: Relative tolerance, as a fraction of ``|golden|``.
        atol_of_scale: Absolute tolerance as a fraction of the output's scale, which is the largest finite ``|golden|``;
            the larger of this and ``atol`` counts.
        class_axis: The axis of classes, for metrics of scores; by default the second of images and else the last longer
            than 1.
        channels: The largest errors of each channel along an axis, for outputs whose channels have different scales.
        clamped_equal: Whether golden values that stand for infinity (beyond -1e9, or the end of FP32) count as equal to
            any value of the same sign of 3e4 or more.
        check_error_stat: Which error is compared with ``atol`` and ``rtol``: every element's (``elemwise``), or the
            ``max``, ``mean``, ``median`` or ``quantile`` of all. An error is too large if it exceeds both.
        error_quantile: The level, between 0 and 1, for ``quantile``.
        infinities_equal: Whether infinities of equal sign count as equal.
        nans_equal: Whether NaNs at the same place count as equal. NaN anywhere else is always bad.
        check_dtypes: Whether another dtype than the golden one's is bad. INT32 for INT64 is accepted: TensorRT before
            10 has no INT64, and a value that does not fit shows as an error.
        allow_extra_outputs: Whether outputs that the golden run does not have are accepted.
        per_output: Other tolerances for single outputs, by name.
    """

    atol: float = setting(1e-5, infinite=True)
    rtol: float = setting(1e-5, infinite=True)
    atol_of_scale: float | None = setting(None, infinite=True)
    class_axis: int | None = setting(None, least=None)
    channels: ChannelErrors | None = None
    clamped_equal: bool | None = None
    check_error_stat: ErrorStat = "elemwise"
    error_quantile: float = setting(0.99, most=1)
    infinities_equal: bool = False
    nans_equal: bool = False
    check_dtypes: bool = True
    allow_extra_outputs: bool = False
    per_output: Mapping[str, OutputTolerances] = field(default_factory=dict)

    if TYPE_CHECKING:  # the table adds fields that type checkers do not know

        def __init__(self, **options: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

    def of(self, output: str) -> Tolerances:
        """The tolerances of one output."""
        output_tolerances = self.per_output.get(output)
        if output_tolerances is None:
            return dataclasses.replace(self, per_output={}) if self.per_output else self
        changes: dict[str, Any] = {}
        for option in dataclasses.fields(output_tolerances):
            value = getattr(output_tolerances, option.name)
            if value is not None:
                changes[option.name] = value
        return dataclasses.replace(self, per_output={}, **changes)

    def largest_abs(self, stats: OutputStatistics) -> float:
        """The absolute tolerance for an output, in its own unit."""
        return max(self.atol, (self.atol_of_scale or 0.0) * (stats.scale or 0.0))


@dataclass(frozen=True)
class Margin:
    """An error of an output and its limit; ``used`` is its share of the limit, above 1 if bad."""

    label: str
    value: float
    limit: float
    used: float
    is_error: bool = True  # False for a share or a similarity

    def __str__(self) -> str:
        return f"{self.label} {self.value:.3g} of {self.limit:.3g}"


@dataclass(frozen=True, kw_only=True)
class OutputComparison(Record):
    """The comparison of one output; without statistics if it could not be compared, for the given reasons."""

    name: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    statistics: OutputStatistics | None = None
    extra: bool = False  # whether the golden run does not have it

    def value(self, metric: Metric) -> float | None:
        """A metric of the output; None without statistics, and for metrics of scores if no axis of classes is known."""
        if self.statistics is None or (metric.by_class and self.statistics.class_axis is None):
            return None
        return cast("float | None", getattr(self.statistics, metric.name))

    def margin(self, tolerances: Tolerances) -> Margin | None:
        """The error with the largest share of its limit; None without limits or measurements."""
        if self.statistics is None:
            return None
        margins = [margin for margin, _ in _checks(self.statistics, tolerances.of(self.name))]
        # An error says more than a correlation or an agreement that is close to 1.
        errors_ = [margin for margin in margins if margin.is_error or margin.used > 1]
        return max(errors_ or margins, key=lambda margin: margin.used, default=None)

    def decided(self, tolerances: Tolerances) -> str:
        """The deciding error and its limit, or the first reason if it is not an error."""
        margin = self.margin(tolerances)
        if self.verdict == "bad" and self.reasons and (margin is None or not margin.used > 1):
            return self.reasons[0]
        return "-" if margin is None else str(margin)


@dataclass(frozen=True, kw_only=True)
class ComparisonReport(Record):
    """A run compared with a golden one; true if every output is good."""

    verdict: Verdict
    outputs: tuple[OutputComparison, ...]
    tolerances: Tolerances
    iterations: int

    def __bool__(self) -> bool:
        return self.verdict == "good"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is bad, one sentence each, naming the output; empty if it is good."""
        return tuple(f"{output.name}: {reason}" for output in self.bad for reason in output.reasons)

    @property
    def bad(self) -> tuple[OutputComparison, ...]:
        """The bad outputs."""
        return tuple(output for output in self.outputs if output.verdict == "bad")

    @property
    def statistics(self) -> dict[str, OutputStatistics]:
        """The statistics of the measured outputs, by name."""
        return {output.name: output.statistics for output in self.outputs if output.statistics is not None}

    def table(self) -> tuple[tuple[str, ...], tuple[tuple[str | float | None, ...], ...]]:
        """Columns and rows: each output with its verdict, the deciding error, and the metrics with a column.

        Relative errors of elements near 0 are left out.
        """
        shown, rows = [metric for metric in METRICS if metric.column], []
        for output in self.outputs:
            near_zero = output.statistics is not None and output.statistics.has_near_zero
            cells = (None if near_zero and metric.name == "max_rel" else output.value(metric) for metric in shown)
            rows.append((output.name, output.verdict, output.decided(self.tolerances), *cells))
        return ("output", "verdict", "decided by", *(metric.column for metric in shown)), tuple(rows)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per output: its verdict, the deciding error, and all recorded metrics under their names."""
        import pandas as pd

        rows = []
        for output in self.outputs:
            decided = {"output": output.name, "verdict": output.verdict, "decided_by": output.decided(self.tolerances)}
            rows.append({**decided, **{metric.name: output.value(metric) for metric in METRICS}})
        frame: pd.DataFrame = pd.DataFrame(rows).set_index("output")
        return frame

    @property
    def decisive(self) -> OutputComparison | None:
        """The deciding output: of the bad ones, or else of all, the nearest to or beyond a limit."""

        def order(output: OutputComparison) -> tuple[bool, float]:
            margin = output.margin(self.tolerances)
            return output.verdict == "bad", math.inf if margin is None else margin.used

        measured = (o for o in self.outputs if o.verdict == "bad" or o.margin(self.tolerances) is not None)
        return max(measured, key=order, default=None)

    @property
    def margin(self) -> Margin | None:
        """The deciding error and its limit; None without limits or measurements."""
        return None if self.decisive is None else self.decisive.margin(self.tolerances)

    @property
    def decided_by(self) -> str:
        """The deciding output, and its error, such as "`y`: max abs 4.8e-05 of 0.001"."""
        output = self.decisive
        return "-" if output is None else f"`{one_line(output.name)}`: {output.decided(self.tolerances)}"

    def output(self, name: str) -> OutputComparison:
        """The entry of one output; KeyError without one."""
        for output in self.outputs:
            if output.name == name:
                return output
        raise KeyError(name)

    def evaluate(self, tolerances: Tolerances) -> ComparisonReport:
        """The report under other tolerances, from the recorded statistics.

        Raises ComparisonError if a number is needed that was not recorded: a quantile level, or errors with another
        treatment of infinities or NaNs where there are any.
        """
        outputs = tuple(_evaluate_output(output, tolerances) for output in self.outputs)
        return dataclasses.replace(self, verdict=_overall_verdict(outputs), outputs=outputs, tolerances=tolerances)


def compare_outputs(
    actual: Outputs, golden: Outputs, tolerances: Tolerances = Tolerances(), *, only_limited: bool = False
) -> ComparisonReport:
    """Compare a run with a golden run of the same model, output by output, all iterations together.

    Outputs are matched by name. A missing or extra output, another shape or another dtype is bad; none of them raises.

    Args:
        actual: The run under test; arrays of any shape and dtype in host memory (or torch tensors).
        golden: The golden run, with as many iterations.
        tolerances: When an output counts as good.
        only_limited: Whether only what decides the verdict is measured; for reports that are not recorded. Margins are
            upper bounds then.

    Raises ComparisonError if the runs have different numbers of iterations or none, or results hold several runners.

    >>> report = compare_outputs({"y": [1.0, 2.5]}, {"y": [1.0, 2.0]}, Tolerances(atol=0.1, rtol=0.1))
    >>> report.verdict, report.decided_by
    ('bad', '`y`: max rel 0.25 of 0.1')
    >>> report.evaluate(Tolerances(atol=0.6)).verdict
    'good'
    """
    ours, theirs = iterations_of(actual, "actual"), iterations_of(golden, "golden")
    if len(ours) != len(theirs):
        raise errors.ComparisonError(
            f"The run under test has {len(ours)} iterations, the golden run {len(theirs)}. Run both on the same inputs."
        )
    if not ours:
        raise errors.ComparisonError("Both runs are empty: there is nothing to compare.")
    every: tuple[Any, ...] = (tolerances, *tolerances.per_output.values())
    quantiles, limited = set(metrics.QUANTILES), set[str]()
    for limits in every:
        quantiles |= set() if limits.error_quantile is None else {limits.error_quantile}
        limited |= {metric.name for metric in LIMITED if getattr(limits, str(metric.tolerance)) is not None}
        limited |= {"median_abs"} if limits.check_error_stat in ("median", "quantile") else set()
    levels = sorted(quantiles)
    outputs = []
    for name in dict.fromkeys(itertools.chain.from_iterable((*theirs, *ours))):
        arrays = [i.get(name) for i in ours], [i.get(name) for i in theirs]
        measured = _measure_output(name, *arrays, tolerances, levels, limited if only_limited else None)
        outputs.append(_evaluate_output(measured, tolerances))
    return ComparisonReport(
        verdict=_overall_verdict(outputs), outputs=tuple(outputs), tolerances=tolerances, iterations=len(ours)
    )


def _overall_verdict(outputs: Iterable[OutputComparison]) -> Verdict:
    return "bad" if any(output.verdict == "bad" for output in outputs) else "good"


def iterations_of(outputs: Any, which: str) -> list[Mapping[str, Any]]:
    """The iterations of an argument of :func:`compare_outputs`; ComparisonError for several runners."""
    from trtops.comparator.results import RunResults

    if isinstance(outputs, RunResults):
        if len(outputs) != 1:
            names = ", ".join(map(repr, outputs.keys())) or "none"
            raise errors.ComparisonError(
                f"The {which} results must hold one runner, found {names}. Pass results[name]."
            )
        return list(outputs[0][1])
    return [outputs] if hasattr(outputs, "keys") else list(outputs)


def _measure_output(
    name: str,
    ours: Sequence[object],
    theirs: Sequence[object],
    tolerances: Tolerances,
    levels: Sequence[float],
    measured: set[str] | None,
) -> OutputComparison:
    """All measurements of one output's arrays; without statistics, with a reason."""
    problem, statistics, output_tolerances = None, None, tolerances.of(name)
    extra = all(golden is None for golden in theirs)
    pairs: list[tuple[Array, Array]] = []
    try:
        for index, (a, b) in enumerate(zip(ours, theirs)):
            where = "" if len(ours) == 1 else f" in iteration {index}"
            mine = None if a is None else to_numpy(a, "The output")
            golden = None if b is None else to_numpy(b, "The golden output")
            if golden is None:
                raise errors.ComparisonError(f"extra output{where}: the golden run does not have it")
            if mine is None:
                shape = f"{dtype_name(golden)}{list(golden.shape)}"
                raise errors.ComparisonError(f"missing output{where}: the golden run has it as {shape}")
            if mine.shape != golden.shape:
                raise errors.ComparisonError(f"shape is {mine.shape}{where}, the golden one {golden.shape}")
            pairs.append((mine, golden))
        statistics, _ = metrics.measure(
            pairs,
            quantiles=levels,
            atol=output_tolerances.atol,
            rtol=output_tolerances.rtol,
            infinities_equal=output_tolerances.infinities_equal,
            nans_equal=output_tolerances.nans_equal,
            clamped_equal=bool(output_tolerances.clamped_equal),
            atol_of_scale=output_tolerances.atol_of_scale or 0.0,
            class_axis=output_tolerances.class_axis,
            channel_axis=None if output_tolerances.channels is None else output_tolerances.channels.axis,
            metrics=measured,
        )
    except errors.ComparisonError as exc:
        problem = str(exc)
    reasons = () if problem is None else (problem,)
    return OutputComparison(name=name, verdict="bad", reasons=reasons, statistics=statistics, extra=extra)


def _evaluate_output(output: OutputComparison, tolerances: Tolerances) -> OutputComparison:
    if output.statistics is None:
        accepted = output.extra and tolerances.allow_extra_outputs
        return dataclasses.replace(output, verdict="good" if accepted else "bad")
    reasons = tuple(_objections(output.name, output.statistics, tolerances.of(output.name)))
    return dataclasses.replace(output, verdict="bad" if reasons else "good", reasons=reasons)


def _objections(name: str, stats: OutputStatistics, tolerances: Tolerances) -> Iterable[str]:
    """Why an output does not meet its tolerances, one sentence each.

    Raises ComparisonError if the errors depend on how infinities, NaNs or clamped values were treated, and the
    tolerances differ in that, or if errors of channels were not recorded.
    """
    if tolerances.channels is not None and (stats.channels is None or stats.channels.axis != tolerances.channels.axis):
        raise errors.ComparisonError(
            f"Output {name!r} was compared without errors of channels along axis {tolerances.channels.axis}. "
            "Compare the arrays again."
        )
    infinite = stats.inf_count and stats.reference_inf_count and stats.infinities_equal != tolerances.infinities_equal
    nan = stats.nan_count and stats.reference_nan_count and stats.nans_equal != tolerances.nans_equal
    if infinite or nan or (stats.clamped and not tolerances.clamped_equal):
        setting = "infinities_equal" if infinite else "nans_equal" if nan else "clamped_equal"
        raise errors.ComparisonError(
            f"Output {name!r} was compared with {setting}={getattr(stats, setting, True)} and its errors depend on "
            "that. Compare the arrays again."
        )
    # TensorRT before 10 has no INT64 and returns INT32.
    narrowed = (stats.dtype, stats.reference_dtype) == ("int32", "int64")
    if tolerances.check_dtypes and stats.dtype != stats.reference_dtype and not narrowed:
        yield f"dtype is {stats.dtype}, the golden one {stats.reference_dtype}"
    if stats.nan_errors and stats.nan_count:
        yield f"{stats.nan_count} of {stats.elements} elements are NaN (golden: {stats.reference_nan_count})"
    elif stats.nan_errors:
        yield (
            f"{stats.nan_errors} of {stats.elements} errors are NaN (golden NaNs: {stats.reference_nan_count}, "
            "infinities on both sides: see infinities_equal)"
        )
    if stats.dtype == "str" and stats.max_abs > 0:
        yield f"{round(stats.mean_abs * stats.elements)} of {stats.elements} strings differ"
        return
    yield from (text for _, text in _checks(stats, tolerances) if text)


def _checks(stats: OutputStatistics, tolerances: Tolerances) -> Iterable[tuple[Margin, str]]:
    """Each limited error of an output, and a sentence on it if it is too large."""
    if stats.dtype == "str":
        return
    # Integers may be labels or tokens, which have no distance: only the share of equal ones counts.
    counted = tolerances.min_agreement is not None and stats.agreement is not None
    if not counted:
        yield from _check_errors(stats, tolerances)
    for metric in LIMITED:
        limit, value = getattr(tolerances, str(metric.tolerance)), getattr(stats, metric.name)
        if limit is not None:
            stats.require(metric.name)
        if limit is None or value is None or (counted and metric.name != "agreement"):
            continue
        bound = f"{limit:g}{metric.suffix}"
        if metric.better == "lower":
            used, rule = _share(value, limit), f"at most {bound} is allowed"
        else:  # decibels have no best value
            used = _share(limit, value) if metric.unit else _share(1 - value, 1 - limit)
            rule = f"at least {bound} is required"
        text = "" if metric.passes(value, limit) else f"{metric.label} is {value:.5g}{metric.suffix}, {rule}"
        yield Margin(metric.column or metric.label, value, limit, used, metric.better == "lower"), text
    if not counted and stats.channels is not None and tolerances.channels is not None:
        yield from _check_channels(stats.channels, tolerances.channels)


def _check_errors(stats: OutputStatistics, tolerances: Tolerances) -> Iterable[tuple[Margin, str]]:
    """The error closest to or beyond both tolerances, compared with the less exceeded one."""
    stat, atol = tolerances.check_error_stat, tolerances.largest_abs(stats)
    points: Iterable[tuple[float, float]] = stats.frontier or [(stats.max_abs, stats.max_rel)]
    names = "max abs", "max rel"
    if stat == "elemwise":
        counted = (stats.atol, stats.rtol) == (atol, tolerances.rtol)
        how_many = f"{stats.violations} of {stats.elements}" if counted else "some"
        largest = f"the largest errors are {stats.max_abs:.3g} absolute, {stats.max_rel:.3g} relative"
        text = f"{how_many} elements exceed {{}}; {largest}"
    else:
        error = stats.error(stat, tolerances.error_quantile)
        label = f"{tolerances.error_quantile:g} quantile" if stat == "quantile" else stat
        points, names = [(error.abs, error.rel)], (f"{label} abs", f"{label} rel")
        of_the = " of the" if stat == "quantile" else ""
        text = f"{label}{of_the} error is {error.abs:.3g} absolute, {error.rel:.3g} relative; exceeds {{}}"
    limits = f"atol {atol:g} and rtol {tolerances.rtol:g}"
    if atol > tolerances.atol:
        limits = f"atol {atol:.3g} ({tolerances.atol_of_scale:.3g} of the scale {stats.scale:.3g}) "
        limits += f"and rtol {tolerances.rtol:.3g}"
    shares = []
    for point in points:
        margins = [Margin(*parts, _share(*parts[1:])) for parts in zip(names, point, (atol, tolerances.rtol))]
        shares.append(min(margins, key=lambda margin: margin.used))
    exceeds = stats.exceeds(stat, atol, tolerances.rtol, tolerances.error_quantile)
    yield max(shares, key=lambda margin: margin.used), text.format(limits) if exceeds else ""


def _check_channels(measured: ChannelErrors, limits: ChannelErrors) -> Iterable[tuple[Margin, str]]:
    """The largest error of a channel relative to its limit, of channels along the same axis."""
    margins, bad_channels = list[Margin](), set[int]()
    for label, values, allowed in (("max abs", measured.max_abs, limits.max_abs), ("RMS", measured.rms, limits.rms)):
        for number, (value, limit) in enumerate(zip(values, allowed)):
            margins.append(Margin(f"channel {number}: {label}", value, limit, _share(value, limit)))
            bad_channels |= {number} if margins[-1].used > 1 else set()
    count, worst = len(bad_channels), max(margins, key=lambda margin: margin.used, default=None)
    if worst is not None:
        yield worst, f"errors of {count} channels are too large, the worst is {worst}" if count else ""


def _share(value: float, limit: float) -> float:
    """An error as a share of its limit; infinite for NaN, and 0 without a limit."""
    if math.isnan(value):
        return math.inf
    if limit == math.inf:
        return 0.0
    return 0.0 if value <= 0 else value / largest_within(limit) if limit > 0 else math.inf
