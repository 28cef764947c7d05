"""Compare functions: what counts as a match between the outputs of two iterations.

A compare function is called with two :class:`~trtops.comparator.results.IterationResult` and returns a match for each
output. All of them take their numbers from :func:`trtops.comparator.metrics.statistics`, which runs once for all
functions that are used together. Every option accepts a dict of values by output, in which ``""`` is for outputs that
it does not name, and None for the default.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np

from trtops import errors
from trtops.comparator import metric_results, metrics
from trtops.comparator.arrays import Array, dtype_name, holds_strings, permuted_axes, to_numpy
from trtops.comparator.metric_results import (
    CompareResult,
    MetricThreshold,
    OutputCompareResult,
    SimpleThreshold,
    Threshold,
)
from trtops.comparator.metrics import OutputStatistics
from trtops.comparator.metrics.difference import difference_of
from trtops.comparator.report_lines import FINISH, START, log_lines, log_statistics, verdict_level
from trtops.comparator.results import IterationResult
from trtops.comparator.table import COMPARISONS, Comparison

__all__ = [
    "BaseCompareFunc",
    "CompareFunc",
    "IndicesCompareFunc",
    "SimpleCompareFunc",
    *(comparison.compare_func for comparison in COMPARISONS),
]

T = TypeVar("T")
PerOutput: TypeAlias = "T | Mapping[str, T]"
Matches: TypeAlias = "dict[str, CompareResult | bool]"
FindOutput: TypeAlias = "Callable[[str, int, IterationResult], Sequence[str] | None]"

_log = logging.getLogger(__name__)


class StatisticsCache:
    """Statistics of the outputs of two iterations, shared by several compare functions."""

    def __init__(self) -> None:
        self._kept: dict[tuple[tuple[str, str], bool], OutputStatistics] = {}

    def get(
        self,
        names: tuple[str, str],
        a: Array,
        b: Array,
        threshold: SimpleThreshold | None = None,
        infinities_equal: bool = False,
    ) -> OutputStatistics:
        """Statistics of two arrays, with the violations and the quantile of a threshold if one is given."""
        kept = self._kept.get((names, infinities_equal))
        if kept is not None:
            levels = {0.5, *(quantile.level for quantile in kept.quantiles)}
            wanted = None if threshold is None else (threshold.atol, threshold.rtol)
            if threshold is None or (wanted == (kept.atol, kept.rtol) and threshold.error_quantile in levels):
                return kept
        found = self._kept[names, infinities_equal] = metrics.statistics(
            a,
            b,
            quantiles=sorted({*metrics.QUANTILES, *(() if threshold is None else (threshold.error_quantile,))}),
            atol=1e-5 if threshold is None else threshold.atol,
            rtol=1e-5 if threshold is None else threshold.rtol,
            infinities_equal=infinities_equal,
        )
        return found


class BaseCompareFunc:
    """Base of compare functions: pairs outputs, aligns shapes, stops early.

    Subclasses define :meth:`thresholds_for` and :meth:`match`. They are dataclasses, in whose options None stands for
    the default.
    """

    label: ClassVar[str] = ""

    check_shapes: bool
    fail_fast: bool
    find_output_func: FindOutput | None

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):  # type: ignore[arg-type]
            if getattr(self, option.name) is None and option.default is not dataclasses.MISSING:
                object.__setattr__(self, option.name, option.default)

    def __call__(self, iter_result0: IterationResult, iter_result1: IterationResult) -> Matches:
        """Compare two iterations.

        Args:
            iter_result0: The outputs under test.
            iter_result1: The reference.

        Returns:
            A match per output of the first that has a counterpart in the second.

        Raises:
            ComparisonError: If no output has a counterpart, or something in them cannot be compared.
            MetricUnavailableError: If the metric cannot be computed here.
        """
        return self.compare(iter_result0, iter_result1, StatisticsCache())

    def compare(self, iter_result0: IterationResult, iter_result1: IterationResult, cache: StatisticsCache) -> Matches:
        """Like calling it, with statistics shared with other compare functions on the same two iterations."""
        self._warn_of_unknown_outputs({*iter_result0, *iter_result1, ""})
        matches: Matches = {}
        for name0, name1 in _counterpart_names(iter_result0, iter_result1, self.find_output_func):
            out0, out1 = iter_result0[name0], iter_result1[name1]
            if _log.isEnabledFor(START):
                pair = ((name0, out0), (name1, out1))
                one, other = (f"'{name}' (dtype={out.dtype}, shape={tuple(out.shape)})" for name, out in pair)
                log_lines(START, f"{self.label} | Comparing Output: {one} with {other}", indent=1)
            found = self._match_pair(name0, out0, name1, out1, cache)
            if matches.get(name0, True):  # of several counterparts the first that differs counts
                matches[name0] = found
            if self.fail_fast and not found:
                break
        if not matches and (len(iter_result0) or len(iter_result1)):
            raise errors.ComparisonError(
                f"No output of {iter_result0.runner_name} ({', '.join(iter_result0) or 'none'}) has a counterpart in "
                f"{iter_result1.runner_name} ({', '.join(iter_result1) or 'none'}). "
                "Name the counterparts with find_output_func."
            )
        mismatched = [name for name, match in matches.items() if not match]
        if mismatched:
            log_lines(logging.ERROR, f"FAILED | {self.label} | Mismatched outputs: {mismatched}", indent=1)
        else:
            log_lines(FINISH, f"PASSED | {self.label} | All outputs matched | Outputs: {list(matches)}", indent=1)
        return matches

    def thresholds_for(self, output_name: str) -> Threshold:
        """The threshold of an output."""
        raise NotImplementedError

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> CompareResult | bool:
        """Compare two arrays of one shape.

        Args:
            names: The output's name, and its counterpart's.
            a: The output under test.
            b: Its counterpart.
            cache: Computes statistics, or returns those computed before.
        """
        raise NotImplementedError

    def log_numbers(self, name: str, a: Array, b: Array, found: CompareResult | bool) -> None:
        """Log more about a match at the level INFO; nothing by default."""

    def verdict_line(self, name: str, found: CompareResult | bool) -> str:
        """Whether an output matches, in a line that begins with ``PASSED`` or ``FAILED`` or ends with it."""
        line = None if isinstance(found, bool) else found.describe()
        return line[0] if line else f"{'PASSED' if found else 'FAILED'} | Output: '{name}' | {self.label}"

    def _match_pair(self, name0: str, out0: Any, name1: str, out1: Any, cache: StatisticsCache) -> CompareResult | bool:
        a, b = to_numpy(out0, f"Output {name0!r}"), to_numpy(out1, f"Output {name1!r}")
        if a.shape != b.shape:
            if self.check_shapes or a.size != b.size:
                text = f"FAILED | Output: `{name0}` | Will not compare outputs of different shapes.\n"
                log_lines(logging.ERROR, f"{text}Note: Output shapes are {a.shape} and {b.shape}.", indent=2)
                return False
            if sorted(a.shape) == sorted(b.shape):
                b = b.transpose(permuted_axes(b.shape, a.shape))
            b = b.reshape(a.shape)
        found = self.match((name0, name1), a, b, cache)
        if not isinstance(found, bool):
            found.output0_name, found.output1_name = name0, name1
        passed = bool(found)
        level = verdict_level(passed)
        if _log.isEnabledFor(level):
            if not isinstance(found, bool) and found.describe() is None:
                shown = f"Output {name0!r} ({dtype_name(a)}, shape {a.shape}) | {found.summary()}"
                log_lines(logging.INFO if passed else logging.ERROR, shown, indent=2)
            if _log.isEnabledFor(logging.INFO):
                self.log_numbers(name0, a, b, found)
            log_lines(level, self.verdict_line(name0, found), indent=2)
        return found

    def _warn_of_unknown_outputs(self, known: set[str]) -> None:
        for option in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, option.name)
            for name in value if isinstance(value, Mapping) else ():
                if name not in known:
                    hint = errors.near(name, known)
                    _log.warning("%s names output %r, which does not exist. %s", option.name, name, hint)


def _of_output(value: PerOutput[T], output: str, default: T) -> T:
    """The value of an option for one output."""
    if isinstance(value, Mapping):
        return cast("T", value.get(output, value.get("", default)))
    return value


def _counterpart_names(
    result0: IterationResult, result1: IterationResult, find: FindOutput | None
) -> Iterator[tuple[str, str]]:
    for index, name0 in enumerate(result0):
        names = _guess_counterpart(name0, index, result1, result0) if find is None else find(name0, index, result1)
        for name1 in names or []:
            if name1 in result1:
                yield name0, name1
            else:
                _log.warning("Output %r is skipped: its counterpart %r is not in %s", name0, name1, result1.runner_name)


def _guess_counterpart(name: str, index: int, where: IterationResult, base: IterationResult) -> list[str]:
    """The output of the same name, or else of a similar name, or else at the same place; never a name of ``base``."""
    if name in where:
        return [name]
    near = [other for other in where if name.lower() in other.lower() or other.lower() in name.lower()]
    found = near[0] if near else (list(where)[index] if index < len(where) else None)
    if found is None or found in base:
        _log.warning("Output %r is skipped: %s has no counterpart for it", name, where.runner_name)
        return []
    _log.warning("Output %r is taken to correspond to %r of %s", name, found, where.runner_name)
    return [found]


@dataclass(frozen=True)
class SimpleCompareFunc(BaseCompareFunc):
    """Compares errors with an absolute and a relative tolerance; an error that exceeds both fails.

    Attributes:
        check_shapes: Whether shapes must be equal; otherwise outputs with as many elements are compared.
        rtol: Relative tolerance, as a fraction of the second output.
        atol: Absolute tolerance, in the output's own unit.
        fail_fast: Whether to stop at the first output that does not match.
        find_output_func: Finds counterparts: called with an output's name, its place and the other iteration, returns
            names in it, none to skip the output.
        check_error_stat: Which error is compared: ``elemwise`` (every element's), ``max``, ``mean``, ``median`` or
            ``quantile``.
        infinities_compare_equal: Whether infinities of equal sign count as equal; their difference is NaN otherwise.
        save_heatmaps: A directory to save heat maps of both errors in, as PNG files.
        show_heatmaps: Whether to show them in a window.
        save_error_metrics_plot: A directory to save a plot of both errors over the magnitude in, as a PNG file.
        show_error_metrics_plot: Whether to show it in a window.
        error_quantile: The level, between 0 and 1, for ``quantile``.
    """

    label: ClassVar[str] = "simple"

    check_shapes: bool = True
    rtol: PerOutput[float] = 1e-5
    atol: PerOutput[float] = 1e-5
    fail_fast: bool = False
    find_output_func: FindOutput | None = None
    check_error_stat: PerOutput[str] = "elemwise"
    infinities_compare_equal: bool = False
    save_heatmaps: str | None = None
    show_heatmaps: bool = False
    save_error_metrics_plot: str | None = None
    show_error_metrics_plot: bool = False
    error_quantile: PerOutput[float] = 0.99

    def thresholds_for(self, output_name: str) -> SimpleThreshold:
        """The tolerances of an output."""
        return SimpleThreshold(
            _of_output(self.check_error_stat, output_name, "elemwise"),
            _of_output(self.atol, output_name, 1e-5),
            _of_output(self.rtol, output_name, 1e-5),
            _of_output(self.error_quantile, output_name, 0.99),
        )

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> OutputCompareResult:
        """All error statistics, with the tolerances."""
        threshold = self.thresholds_for(names[0])
        found = cache.get(names, a, b, threshold, self.infinities_compare_equal)
        heatmaps = self.save_heatmaps or self.show_heatmaps
        if heatmaps or self.save_error_metrics_plot or self.show_error_metrics_plot:
            from trtops.comparator import plot  # slow to import

            if heatmaps:
                plot.draw_heatmaps(a, b, names[0], self.save_heatmaps, self.show_heatmaps)
            if self.save_error_metrics_plot or self.show_error_metrics_plot:
                plot.draw_error_metrics(a, b, names[0], self.save_error_metrics_plot, self.show_error_metrics_plot)
        return OutputCompareResult.of(found, threshold)

    def log_numbers(self, name: str, a: Array, b: Array, found: CompareResult | bool) -> None:
        """Log the tolerances, the smallest ones that would pass, and statistics of both errors, as Polygraphy does."""
        limits = self.thresholds_for(name)
        stat = limits.check_error_stat
        tolerance = f"Tolerance: [abs={limits.atol:.5g}, rel={limits.rtol:.5g}] | Checking {stat} error"
        log_lines(logging.INFO, f"{tolerance}\nError Metrics: {name}", indent=2)
        numbers = found.metric_values() if isinstance(found, OutputCompareResult) else {}
        absolute, relative = (
            numbers.get(f"{'max' if stat == 'elemwise' else stat}_{kind}") for kind in ("absdiff", "reldiff")
        )
        if absolute is not None and relative is not None:
            also = {
                "elemwise": " (requirements may be lower if both abs/rel tolerances are set)",
                "quantile": f" (quantile={limits.error_quantile:.4g})",
            }.get(stat, "")
            needed = f"{stat} error | [abs={absolute:.5g}] OR [rel={relative:.5g}]{also}"
            log_lines(logging.INFO, f"Minimum Required Tolerance: {needed}", indent=3)
        if holds_strings(a):
            return
        difference = difference_of(a, b, self.infinities_compare_equal, nans_equal=False)
        with np.errstate(all="ignore"):
            _, reference, distance = difference(a.reshape(-1), b.reshape(-1))
            relative_errors = difference.relative(distance, reference).reshape(a.shape)
        log_statistics("Absolute Difference", distance.reshape(a.shape), failed=not found, indent=3)
        log_statistics("Relative Difference", relative_errors, failed=not found, indent=3)

    def verdict_line(self, name: str, found: CompareResult | bool) -> str:
        """Whether the difference is within the tolerances."""
        threshold = self.thresholds_for(name)
        verdict = (
            "PASSED | Output: '{}' | Difference is within" if found else "FAILED | Output: '{}' | Difference exceeds"
        )
        return f"{verdict.format(name)} tolerance (rel={threshold.rtol}, abs={threshold.atol})"


@dataclass(frozen=True)
class IndicesCompareFunc(BaseCompareFunc):
    """Compares indices, such as those of a top-k: each must be in the other output near its own place.

    Outputs are compared along their last axis. Results are plain truth values.

    Attributes:
        index_tolerance: How many places away an index may be; as many of the last indices are not checked.
        fail_fast: Whether to stop at the first output that does not match.
    """

    label: ClassVar[str] = "indices"
    index_tolerance: PerOutput[int] = 0
    fail_fast: bool = False
    check_shapes: bool = field(default=True, init=False, repr=False)
    find_output_func: FindOutput | None = field(default=None, init=False, repr=False)

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> bool:
        """Whether all indices are near their places."""
        tolerance = _of_output(self.index_tolerance, names[0], 0)
        length = a.shape[-1] if a.ndim else 1
        if not length:
            return True
        rows_a, rows_b = a.reshape(-1, length), b.reshape(-1, length)
        kept = max(0, length - tolerance)
        for row in np.flatnonzero((rows_a[:, :kept] != rows_b[:, :kept]).any(axis=1)):
            among = rows_b[row].tolist()
            places = {value: place for place, value in reversed(list(enumerate(among)))}
            for place, value in enumerate(rows_a[row, :kept].tolist()):
                if value != among[place] and abs(places.get(value, math.inf) - place) > tolerance:
                    return False
        return True

    def verdict_line(self, name: str, found: CompareResult | bool) -> str:
        """Whether places are within the tolerance."""
        verdict = "PASSED | Difference is within" if found else "FAILED | Difference exceeds"
        return f"{verdict} index tolerance ({_of_output(self.index_tolerance, name, 0)})"


class MetricCompareFunc(BaseCompareFunc):
    """Compares metrics of the table with limits; ``L2CompareFunc`` and so on are made from this class below."""

    COMPARISON: ClassVar[Comparison]
    THRESHOLD: ClassVar[type[MetricThreshold]]
    RESULT: ClassVar[type[CompareResult]]

    def thresholds_for(self, output_name: str) -> MetricThreshold:
        """The limits of an output."""
        limits = self.COMPARISON.limits.items()
        return self.THRESHOLD(*(_of_output(getattr(self, option), output_name, m.limit) for option, m in limits))

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> CompareResult:
        """The metrics, with their limits.

        Raises:
            MetricUnavailableError: If the output has no such metric, or it cannot be computed here.
        """
        values: list[float] = []
        for metric in self.COMPARISON.limits.values():
            value = getattr(cache.get(names, a, b), metric.name) if metric.recorded else metric.measure(None, [(a, b)])
            if value is None or holds_strings(a):
                found = "strings" if holds_strings(a) else f"{dtype_name(a)} of shape {a.shape}"
                raise errors.MetricUnavailableError(
                    f"Output {names[0]!r} holds {found}; {self.label} needs {metric.applies_to}."
                )
            values.append(value)
        return self.RESULT(*values, thresholds=self.thresholds_for(names[0]))


_COMPARE_FUNC_DOC = """Compares the {label} of outputs with a limit for each number.

    Attributes:
{meanings}        check_shapes: As in :class:`SimpleCompareFunc`.
        fail_fast: As in :class:`SimpleCompareFunc`.
        find_output_func: As in :class:`SimpleCompareFunc`.
    """


def _compare_func_class(comparison: Comparison) -> type[MetricCompareFunc]:
    limits = comparison.limits.items()
    meanings = "".join(f"        {option}: The {m.limit_kind} allowed {m.described}.\n" for option, m in limits)
    return make_dataclass(
        comparison.compare_func,
        [
            *((option, "PerOutput[float]", metric.limit) for option, metric in limits),
            ("check_shapes", "bool", True),
            ("fail_fast", "bool", False),
            ("find_output_func", "FindOutput | None", None),
        ],
        bases=(MetricCompareFunc,),
        frozen=True,
        namespace={
            "__doc__": _COMPARE_FUNC_DOC.format(label=comparison.label, meanings=meanings),
            "__module__": __name__,
            "label": comparison.label,
            "COMPARISON": comparison,
            "THRESHOLD": getattr(metric_results, comparison.threshold),
            "RESULT": getattr(metric_results, comparison.result),
        },
    )


# Polygraphy has thresholds and results in this module as well.
globals().update({name: getattr(metric_results, name) for name in metric_results.__all__})

_OF_METRICS = {comparison.name: _compare_func_class(comparison) for comparison in COMPARISONS}
globals().update({kind.__name__: kind for kind in _OF_METRICS.values()})


class _FunctionsByName(type):
    """Gives a class the table's compare functions as attributes."""

    def __getattr__(cls, name: str) -> type[BaseCompareFunc]:
        if name not in _OF_METRICS:
            known = ["simple", "indices", *_OF_METRICS]
            raise AttributeError(f"There is no compare function {name!r}. {errors.near(name, known)}")
        return _OF_METRICS[name]

    def __dir__(cls) -> list[str]:
        return sorted({*super().__dir__(), *_OF_METRICS})


class CompareFunc(metaclass=_FunctionsByName):
    """The compare functions by name: ``CompareFunc.simple(atol=1e-3)``, ``CompareFunc.l2()``."""

    simple = SimpleCompareFunc
    indices = IndicesCompareFunc
