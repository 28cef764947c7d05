"""Results of compare functions: the numbers of one output, and the threshold for the verdict.

The verdict is derived from the numbers, so a result can be evaluated by another threshold at any time. Names and saved
form are Polygraphy's. The end of this module makes thresholds and results of single metrics (``L2Threshold``,
``L2Result`` and so on) from the table in :mod:`trtops.comparator.table`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any, ClassVar, Literal, cast

from trtops import errors
from trtops.comparator.arrays import largest_within
from trtops.comparator.metrics import OutputStatistics
from trtops.comparator.table import COMPARISONS, ERRORS, Comparison, Metric
from trtops.json import Decoder, Encoder

__all__ = [
    "CompareResult",
    "OutputCompareResult",
    "SimpleThreshold",
    "Threshold",
    *(comparison.threshold for comparison in COMPARISONS),
    *(comparison.result for comparison in COMPARISONS),
]

ErrorStat = Literal["elemwise", "max", "mean", "median", "quantile"]
ERROR_STATS = ("elemwise", "max", "mean", "median", "quantile")

Numbers = Mapping[str, "float | None"]


class Threshold:
    """Limits for numbers of some names."""

    METRIC_FIELDS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def metric_fields(cls) -> list[str]:
        """The names of the numbers; a threshold fits results with these names."""
        return list(cls.METRIC_FIELDS)

    def passed(self, metric_values: Numbers) -> bool:
        """Whether the numbers, by name, are good enough. NaN never is."""
        raise NotImplementedError

    def describe(self, metric_values: Numbers) -> tuple[str, bool] | None:
        """One line for the log and the verdict; None if the threshold has no such line."""
        return None


@dataclass(frozen=True)
class SimpleThreshold(Threshold):
    """Tolerances for one error statistic; it fails above both, as in :class:`SimpleCompareFunc`."""

    METRIC_FIELDS = (*(error.result_field for error in ERRORS), "quantile_absdiff", "quantile_reldiff")

    check_error_stat: str
    atol: float
    rtol: float
    error_quantile: float = 0.99

    def __post_init__(self) -> None:
        errors.check_known(self.check_error_stat, ERROR_STATS, "Invalid choice for check_error_stat:")

    def passed(self, metric_values: Numbers) -> bool:
        """Whether the statistic is within either tolerance; ComparisonError if it was not stored, as for elemwise."""
        absolute = metric_values.get(f"{self.check_error_stat}_absdiff")
        relative = metric_values.get(f"{self.check_error_stat}_reldiff")
        if absolute is None or relative is None:
            raise errors.ComparisonError(
                f"The results have no {self.check_error_stat!r} error to evaluate by. "
                "Evaluate by max, mean or median, or compare the outputs again."
            )
        return absolute <= largest_within(self.atol) or relative <= largest_within(self.rtol)


class MetricThreshold(Threshold):
    """Limits for metrics of the table; all must hold. Base of ``L2Threshold`` and so on.

    A single limit is in the field ``threshold``; several are in fields named like the options of the compare function.
    """

    COMPARISON: ClassVar[Comparison]

    def limits(self) -> list[tuple[Metric, float]]:
        """The metrics and the limit of each."""
        return list(zip(self.COMPARISON.limits.values(), vars(self).values()))

    def passed(self, metric_values: Numbers) -> bool:
        """Return True if all limits hold; NaN and missing numbers fail."""
        return all(metric.passes(metric_values.get(metric.result_field), limit) for metric, limit in self.limits())

    def describe(self, metric_values: Numbers) -> tuple[str, bool] | None:
        """One line for the log and the verdict; None if a number is not known."""
        parts = []
        for metric, limit in self.limits():
            value = metric_values.get(metric.result_field)
            if value is None:
                return None
            relation = "tolerance" if metric.better == "lower" else "min required"
            parts.append(f"{metric.title}: {value:.5g}{metric.suffix} ({relation}: {limit:.5g}{metric.suffix})")
        passed = self.passed(metric_values)
        return f"{', '.join(parts)} | {'PASSED' if passed else 'FAILED'}", passed


@dataclass(eq=False)
class CompareResult:
    """The numbers of one output; true if its threshold passes them.

    The compare function sets ``output0_name``, the output's name, and ``output1_name``, that of its counterpart.
    """

    _THRESHOLD_CLASS: ClassVar[type[Threshold]] = Threshold  # subclasses of users set it, as in Polygraphy

    thresholds: Any = field(default=None, kw_only=True)
    output0_name: str | None = field(default=None, init=False)
    output1_name: str | None = field(default=None, init=False)

    def __bool__(self) -> bool:
        return bool(self.thresholds.passed(self.metric_values()))

    @property
    def passed(self) -> bool:
        """The verdict, as a property."""
        return bool(self)

    @classmethod
    def metric_fields(cls) -> list[str]:
        """The names of the numbers."""
        return cls._THRESHOLD_CLASS.metric_fields()

    def metric_values(self) -> dict[str, float | None]:
        """The numbers by name."""
        return {name: getattr(self, name) for name in self.metric_fields()}

    def set_thresholds(self, thresholds: Threshold) -> None:
        """Replace the threshold."""
        self.thresholds = thresholds

    def describe(self) -> tuple[str, bool] | None:
        """One line for the log and the verdict; None if the threshold has no such line."""
        return cast("Threshold", self.thresholds).describe(self.metric_values())

    def summary(self) -> str:
        """The numbers and the threshold in one line, without the verdict."""
        if line := self.describe():
            return line[0].rpartition(" | ")[0]
        numbers = {**self.metric_values(), **vars(self.thresholds)}
        return ", ".join(f"{name} {f'{v:.5g}' if isinstance(v, float) else v}" for name, v in numbers.items())

    @classmethod
    def average(cls, results: Sequence[CompareResult]) -> CompareResult:
        """A result with the means of the numbers of several results of this type.

        Its class takes the numbers by name, and ``thresholds``.
        """
        means = {}
        for name in cls.metric_fields():
            numbers = [getattr(result, name) for result in results if getattr(result, name) is not None]
            means[name] = sum(numbers) / len(numbers) if numbers else None
        return cls(**means, thresholds=results[0].thresholds)


@dataclass(eq=False)
class OutputCompareResult(CompareResult):
    """The error statistics of one output, absolute in its own unit and relative to the reference."""

    _THRESHOLD_CLASS = SimpleThreshold

    max_absdiff: float | None
    max_reldiff: float | None
    mean_absdiff: float | None
    mean_reldiff: float | None
    median_absdiff: float | None
    median_reldiff: float | None
    quantile_absdiff: float | None = None
    quantile_reldiff: float | None = None
    # The verdict from a file, for `elemwise` results of Polygraphy, whose numbers do not give it.
    stored: bool | None = field(default=None, repr=False)
    statistics: OutputStatistics | None = field(default=None, repr=False)  # give the verdict for any tolerances

    @classmethod
    def of(cls, statistics: OutputStatistics, thresholds: SimpleThreshold) -> OutputCompareResult:
        """The result for statistics with the threshold's quantile level."""
        quantile = statistics.quantile(thresholds.error_quantile)
        return cls(
            **{error.result_field: getattr(statistics, error.name) for error in ERRORS},
            quantile_absdiff=quantile.abs,
            quantile_reldiff=quantile.rel,
            statistics=statistics,
            thresholds=thresholds,
        )

    def __bool__(self) -> bool:
        threshold = self.thresholds
        if not isinstance(threshold, SimpleThreshold) or threshold.check_error_stat != "elemwise":
            return bool(threshold.passed(self.metric_values()))
        if self.statistics is not None:
            return not self.statistics.any_violation(threshold.atol, threshold.rtol)
        if self.stored is not None:
            return self.stored
        raise errors.ComparisonError(
            "Whether every element is within the tolerances does not follow from these results, which hold statistics "
            "only. Evaluate by max, mean or median, or compare the outputs again."
        )

    def set_thresholds(self, thresholds: Threshold) -> None:
        """Replace the threshold. A verdict from a file does not apply to the new one."""
        super().set_thresholds(thresholds)
        self.stored = None
        if self.statistics is not None and isinstance(thresholds, SimpleThreshold):
            try:
                quantile = self.statistics.quantile(thresholds.error_quantile)
                self.quantile_absdiff, self.quantile_reldiff = quantile.abs, quantile.rel
            except errors.ComparisonError:  # that level was not recorded
                self.quantile_absdiff = self.quantile_reldiff = None

    def __str__(self) -> str:
        return f"(atol={self.max_absdiff}, rtol={self.max_reldiff})"


def _read_number(members: Mapping[str, Any], name: str, required: bool = False) -> Any:
    value = members[name]
    if (value is None and required) or isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
        raise errors.FormatError(f"{name} is {value!r:.80}; expected a number")
    return None if value is None else float(value)


def _read_threshold(members: Mapping[str, Any], kind: type[Any]) -> Threshold:
    threshold = members["thresholds"]
    if not isinstance(threshold, kind._THRESHOLD_CLASS):
        actual, expected = type(threshold).__name__, kind._THRESHOLD_CLASS.__name__
        raise errors.FormatError(f"the thresholds of a {kind.__name__} are a {actual}; expected a {expected}")
    return cast("Threshold", threshold)


def _register(threshold_class: type[Any]) -> None:
    options = fields(threshold_class)

    def decode(members: Mapping[str, Any]) -> Any:
        values: list[str | float] = []
        for option in options:
            if option.name not in members and option.default is not MISSING:
                values.append(option.default)  # Polygraphy writes no `error_quantile`, and ignores it
            elif option.type == "str":
                values.append(str(members[option.name]))
            else:
                values.append(_read_number(members, option.name, required=True))
        return threshold_class(*values)

    Encoder.register(threshold_class)(lambda threshold: dict(vars(threshold)))
    Decoder.register(threshold_class)(decode)


def _make_classes(comparison: Comparison) -> tuple[type[MetricThreshold], type[CompareResult]]:
    """The threshold and the result of a comparison."""
    metrics = comparison.limits.values()
    options = ["threshold"] if len(metrics) == 1 else list(comparison.limits)
    allowed = " and the ".join(f"{m.limit_kind} allowed {m.described}" for m in metrics)
    threshold = make_dataclass(
        comparison.threshold,
        [(option, "float") for option in options],
        bases=(MetricThreshold,),
        frozen=True,
        namespace={
            "__doc__": f"The {allowed}.",
            "__module__": __name__,
            "COMPARISON": comparison,
            "METRIC_FIELDS": tuple(metric.result_field for metric in metrics),
        },
    )
    labels = " and ".join(m.described for m in metrics)
    result = make_dataclass(
        comparison.result,
        [(m.result_field, "float") for m in metrics],
        bases=(CompareResult,),
        eq=False,
        namespace={"__doc__": f"The {labels} of one output.", "__module__": __name__, "_THRESHOLD_CLASS": threshold},
    )
    return threshold, result


def _register_result(kind: type[Any]) -> None:
    def decode(members: Mapping[str, Any]) -> Any:
        numbers = (_read_number(members, name) for name in kind.metric_fields())
        return kind(*numbers, thresholds=_read_threshold(members, kind))

    Encoder.register(kind)(lambda result: {**result.metric_values(), "thresholds": result.thresholds})
    Decoder.register(kind)(decode)


for _comparison in COMPARISONS:
    _threshold, _result = _make_classes(_comparison)
    globals().update({_comparison.threshold: _threshold, _comparison.result: _result})
    _register(_threshold)
    _register_result(_result)
_register(SimpleThreshold)


@Encoder.register(OutputCompareResult)
def _encode_output(result: OutputCompareResult) -> dict[str, Any]:
    elemwise = isinstance(result.thresholds, SimpleThreshold) and result.thresholds.check_error_stat == "elemwise"
    return {
        **result.metric_values(),
        "thresholds": result.thresholds,
        "passed": bool(result) if elemwise else None,
        # Polygraphy ignores these; they give the `elemwise` verdict for any tolerances.
        "statistics": None if result.statistics is None else result.statistics.to_dict(),
    }


@Decoder.register(OutputCompareResult)
def _decode_output(members: dict[str, Any]) -> OutputCompareResult:
    numbers: dict[str, Any] = {name: _read_number(members, name) for name in SimpleThreshold.METRIC_FIELDS}
    stored, statistics = members["passed"], members.get("statistics")
    if stored is not None and not isinstance(stored, bool):
        raise errors.FormatError(f"passed is {stored!r:.80}; expected true, false or null")
    return OutputCompareResult(
        **numbers,
        stored=stored,
        statistics=None if statistics is None else OutputStatistics.from_dict(statistics),
        thresholds=_read_threshold(members, OutputCompareResult),
    )
