"""Compare functions: the definitions of a match between the outputs of two iterations.

A compare function is called with two :class:`~trtops.comparator.results.IterationResult` and returns a match for each
output. All of them take their numbers from :func:`trtops.comparator.metrics.statistics`, which runs once for all
functions that are used together. Every option accepts a dict of values by output, in which ``""`` is for outputs that
it does not name, and None for the default.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np

from trtops import errors
from trtops.comparator import metric_results, metrics
from trtops.comparator.arrays import Array, closest_name, dtype_name, holds_strings, permuted_axes, to_numpy
from trtops.comparator.metric_results import (
    CompareResult,
    MetricThreshold,
    OutputCompareResult,
    SimpleThreshold,
    Threshold,
)
from trtops.comparator.metrics import OutputStatistics
from trtops.comparator.metrics.totals import Totals
from trtops.comparator.report_lines import (
    FINISH,
    START,
    error_statistics_text,
    log_lines,
    log_statistics,
    verdict_level,
)
from trtops.comparator.results import IterationResult
from trtops.comparator.table import COMPARISONS, Comparison

T = TypeVar("T")
PerOutput: TypeAlias = T | Mapping[str, T]
Matches: TypeAlias = dict[str, CompareResult | bool]
FindOutput: TypeAlias = Callable[[str, int, IterationResult], Sequence[str] | None]

_log = logging.getLogger(__name__)


# Statistics of the outputs of two iterations, shared by the compare functions that are used together: one pass over the
# arrays is most of a comparison's time.
Cache: TypeAlias = dict[tuple[object, ...], tuple[OutputStatistics, Totals]]

_DEFAULT = SimpleThreshold("elemwise", 1e-5, 1e-5)


def _statistics(
    cache: Cache, names: tuple[str, str], a: Array, b: Array, limits: SimpleThreshold = _DEFAULT, inf: bool = False
) -> tuple[OutputStatistics, Totals]:
    """Statistics of two arrays, with the violations and the quantile of a threshold; ``inf``: infinities are equal.

    Metrics that take another pass over the arrays are left out.
    """
    key = names, limits.error_quantile, limits.atol, limits.rtol, inf
    if key not in cache:
        printed = (0.95,) if _log.isEnabledFor(logging.INFO) else ()
        levels = sorted({*metrics.QUANTILES, *printed, limits.error_quantile})
        options: dict[str, Any] = {"atol": limits.atol, "rtol": limits.rtol, "infinities_equal": inf}
        cache[key] = metrics.measure([(a, b)], quantiles=levels, metrics=("median_abs", "frontier"), **options)
    return cache[key]


class BaseCompareFunc:
    """Base of a user's own compare functions: called with two iterations, they return a match per output.

    A match is a truth value, or a :class:`CompareResult` with numbers and a :class:`Threshold`. With
    :meth:`thresholds_for`, matches can be averaged and evaluated again.
    """

    def __call__(self, iter_result0: IterationResult, iter_result1: IterationResult) -> Mapping[str, Any]:
        """Compare the outputs under test with the reference: a match per output."""
        raise NotImplementedError

    def thresholds_for(self, output_name: str) -> Threshold:
        """The threshold of an output; default: no threshold."""
        raise NotImplementedError


class PairingCompareFunc(BaseCompareFunc):
    """Base of our compare functions: pairs outputs, aligns shapes, stops early.

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
                setattr(self, option.name, option.default)
            value = getattr(self, option.name)
            for number in value.values() if isinstance(value, Mapping) else (value,):
                if isinstance(number, float) and math.isnan(number):
                    raise errors.ConfigError(f"{option.name} is {value!r}; expected a number.")

    def __call__(self, iter_result0: IterationResult, iter_result1: IterationResult) -> Matches:
        """Compare the outputs under test with the reference: a match per output with a counterpart.

        Raises ComparisonError if no output has a counterpart, an output cannot be compared, or the metric cannot be
        computed here.
        """
        return self.compare(iter_result0, iter_result1, {})

    def compare(self, iter_result0: IterationResult, iter_result1: IterationResult, cache: Cache) -> Matches:
        """Like calling it, with statistics shared with other compare functions on the same two iterations."""
        output_names = {*iter_result0, *iter_result1, ""}
        for option in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, option.name)
            for name in {*value} - output_names if isinstance(value, Mapping) else ():
                hint = errors.near(name, output_names)
                _log.warning("%s names output %r, which does not exist. %s", option.name, name, hint)
        matches: Matches = {}
        for name0, name1 in _counterparts(iter_result0, iter_result1, self.find_output_func):
            out0, out1 = iter_result0[name0], iter_result1[name1]
            if _log.isEnabledFor(START):
                pair = ((name0, out0), (name1, out1))
                label0, label1 = (f"'{name}' (dtype={out.dtype}, shape={tuple(out.shape)})" for name, out in pair)
                log_lines(START, f"{self.label} | Comparing Output: {label0} with {label1}", indent=1)
            output_match = self._match_pair(name0, out0, name1, out1, cache)
            # Of several counterparts the first that differs counts.
            if matches.get(name0, True):
                matches[name0] = output_match
            if self.fail_fast and not output_match:
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

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: Cache) -> CompareResult | bool:
        """Compare an output with its counterpart, two arrays of one shape; ``names`` are theirs."""
        raise NotImplementedError

    def log_numbers(
        self, names: tuple[str, str], a: Array, b: Array, match: CompareResult | bool, cache: Cache
    ) -> None:
        """Log more about a match at the level INFO; nothing by default."""

    def verdict_line(self, name: str, match: CompareResult | bool) -> str:
        """Whether an output matches, in a line."""
        line = None if isinstance(match, bool) else match.describe()
        return line[0] if line else f"{'PASSED' if match else 'FAILED'} | Output: '{name}' | {self.label}"

    def _match_pair(self, name0: str, out0: Any, name1: str, out1: Any, cache: Cache) -> CompareResult | bool:
        a, b = to_numpy(out0, f"Output {name0!r}"), to_numpy(out1, f"Output {name1!r}")
        # Back ends reorder dimensions of size 1 or flatten outputs; --no-shape-check accepts that.
        if a.shape != b.shape:
            if self.check_shapes or a.size != b.size:
                text = f"FAILED | Output: `{name0}` | Will not compare outputs of different shapes.\n"
                log_lines(logging.ERROR, f"{text}Note: Output shapes are {a.shape} and {b.shape}.", indent=2)
                return False
            if sorted(a.shape) == sorted(b.shape):
                b = b.transpose(permuted_axes(b.shape, a.shape))
            b = b.reshape(a.shape)
        match = self.match((name0, name1), a, b, cache)
        if not isinstance(match, bool):
            match.output0_name, match.output1_name = name0, name1
        level = verdict_level(bool(match))
        if _log.isEnabledFor(logging.INFO):
            self.log_numbers((name0, name1), a, b, match, cache)
        if _log.isEnabledFor(level):
            log_lines(level, self.verdict_line(name0, match), indent=2)
        return match


def _of_output(value: PerOutput[T], output: str, default: T) -> T:
    """The value of an option for one output."""
    if isinstance(value, Mapping):
        return cast("T", value.get(output, value.get("", default)))
    return value


def _counterparts(
    result0: IterationResult, result1: IterationResult, find: FindOutput | None
) -> Iterator[tuple[str, str]]:
    """Pairs of outputs: of the same name, or else of a similar name, or else at the same place."""
    for index, name in enumerate(result0):
        names = [name] if name in result1 else None
        if find is not None:
            names = list(find(name, index, result1) or ())
        if names is None:
            closest = closest_name(name, index, result1)
            # A name of the first result is the counterpart of that output, not of this one.
            if closest is None or closest in result0:
                _log.warning("Output %r is skipped: %s has no counterpart for it", name, result1.runner_name)
                continue
            _log.warning("Output %r is taken to correspond to %r of %s", name, closest, result1.runner_name)
            names = [closest]
        for counterpart in names:
            if counterpart in result1:
                yield name, counterpart
            else:
                _log.warning(
                    "Output %r is skipped: its counterpart %r is not in %s", name, counterpart, result1.runner_name
                )


# Not frozen, since subclasses in scripts set attributes of their own.
@dataclass(unsafe_hash=True)
class SimpleCompareFunc(PairingCompareFunc):
    """Compares errors with an absolute and a relative tolerance; errors above both fail."""

    label: ClassVar[str] = "simple"

    check_shapes: bool = True  # otherwise outputs with as many elements are compared
    rtol: PerOutput[float] = 1e-5  # as a fraction of the second output
    atol: PerOutput[float] = 1e-5  # in the output's own unit
    fail_fast: bool = False  # whether to stop at the first output that does not match
    # Finds counterparts: called with an output's name, its place and the other iteration, returns names in it, none to
    # skip the output.
    find_output_func: FindOutput | None = None
    check_error_stat: PerOutput[str] = "elemwise"  # every element's; or `max`, `mean`, `median` or `quantile`
    infinities_compare_equal: bool = False  # of equal sign; their difference is NaN otherwise
    save_heatmaps: str | None = None  # a directory for heat maps of both errors, as PNG files
    show_heatmaps: bool = False  # in a window
    save_error_metrics_plot: str | None = None  # a directory for a plot of both errors over the magnitude
    show_error_metrics_plot: bool = False
    error_quantile: PerOutput[float] = 0.99  # the level for `quantile`

    def thresholds_for(self, output_name: str) -> SimpleThreshold:
        """The tolerances of an output."""
        return SimpleThreshold(
            _of_output(self.check_error_stat, output_name, "elemwise"),
            _of_output(self.atol, output_name, 1e-5),
            _of_output(self.rtol, output_name, 1e-5),
            _of_output(self.error_quantile, output_name, 0.99),
        )

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: Cache) -> OutputCompareResult:
        """All error statistics, with the tolerances."""
        threshold = self.thresholds_for(names[0])
        statistics, _ = _statistics(cache, names, a, b, threshold, self.infinities_compare_equal)
        heatmaps = self.save_heatmaps or self.show_heatmaps
        if (heatmaps or self.save_error_metrics_plot or self.show_error_metrics_plot) and a.size:
            from trtops.comparator import plot  # slow to import

            name, stem = names[0], plot.file_stem(names[0])
            for kind in plot.KINDS if heatmaps else ():
                figure = plot.heatmap(a, b, name, kind)
                plot.save_and_show(figure, self.save_heatmaps, f"{stem}.{kind}.png", self.show_heatmaps)
            if self.save_error_metrics_plot or self.show_error_metrics_plot:
                figure, path = plot.error_plot(a, b, name), f"{stem}.errors.png"
                plot.save_and_show(figure, self.save_error_metrics_plot, path, self.show_error_metrics_plot)
        return OutputCompareResult.of(statistics, threshold)

    def log_numbers(
        self, names: tuple[str, str], a: Array, b: Array, match: CompareResult | bool, cache: Cache
    ) -> None:
        """Log the tolerances, the smallest passing ones, and statistics of both errors, as Polygraphy does."""
        limits = self.thresholds_for(names[0])
        stat = limits.check_error_stat
        log_lines(
            logging.INFO,
            f"Tolerance: [abs={limits.atol:.5g}, rel={limits.rtol:.5g}] | Checking {stat} error\n"
            f"Error Metrics: {names[0]}",
            indent=2,
        )
        note = " (requirements may be lower if both abs/rel tolerances are set)" if stat == "elemwise" else ""
        measure = "max" if stat == "elemwise" else stat
        absolute, relative = (getattr(match, f"{measure}_{kind}") for kind in ("absdiff", "reldiff"))
        needed = f"{stat} error | [abs={absolute:.5g}] OR [rel={relative:.5g}]{note}"
        log_lines(logging.INFO, f"Minimum Required Tolerance: {needed}", indent=3)
        if holds_strings(a):
            return
        statistics, total = _statistics(cache, names, a, b, limits, self.infinities_compare_equal)
        texts = [
            error_statistics_text(total.abs, statistics, "abs", a),
            error_statistics_text(total.rel, statistics, "rel", a),
        ]
        distance = relative_errors = a  # a histogram needs the errors themselves
        if None in texts or not match or _log.isEnabledFor(logging.DEBUG):
            distance, relative_errors = metrics.elementwise(a, b, self.infinities_compare_equal)
        log_statistics("Absolute Difference", distance, failed=not match, indent=3, text=texts[0])
        log_statistics("Relative Difference", relative_errors, failed=not match, indent=3, text=texts[1])

    def verdict_line(self, name: str, match: CompareResult | bool) -> str:
        """Whether the difference is within the tolerances."""
        threshold = self.thresholds_for(name)
        start, end = ("PASSED", "is within") if match else ("FAILED", "exceeds")
        return f"{start} | Output: '{name}' | Difference {end} tolerance (rel={threshold.rtol}, abs={threshold.atol})"


@dataclass(unsafe_hash=True)
class IndicesCompareFunc(PairingCompareFunc):
    """Compares indices, such as those of a top-k: each must be in the other output near its own place.

    ``index_tolerance`` is how many places away an index may be; as many of the last indices are not checked. Outputs
    are compared along their last axis. Results are plain truth values.
    """

    label: ClassVar[str] = "indices"
    index_tolerance: PerOutput[int] = 0
    fail_fast: bool = False
    # These are no options of this function in Polygraphy.
    check_shapes: bool = field(default=True, init=False, repr=False)
    find_output_func: FindOutput | None = field(default=None, init=False, repr=False)

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: Cache) -> bool:
        """Whether all indices are near their places."""
        tolerance = _of_output(self.index_tolerance, names[0], 0)
        length = a.shape[-1] if a.ndim else 1
        if not length:
            return True
        rows_a, rows_b = a.reshape(-1, length), b.reshape(-1, length)
        compared_length = max(0, length - tolerance)
        # Most rows are equal, and only the others need the search for places.
        for row in np.flatnonzero((rows_a[:, :compared_length] != rows_b[:, :compared_length]).any(axis=1)):
            expected_row = rows_b[row].tolist()
            positions = {value: position for position, value in reversed(list(enumerate(expected_row)))}
            for position, value in enumerate(rows_a[row, :compared_length].tolist()):
                if value != expected_row[position] and abs(positions.get(value, math.inf) - position) > tolerance:
                    return False
        return True

    def verdict_line(self, name: str, match: CompareResult | bool) -> str:
        """Whether places are within the tolerance."""
        verdict = "PASSED | Difference is within" if match else "FAILED | Difference exceeds"
        return f"{verdict} index tolerance ({_of_output(self.index_tolerance, name, 0)})"


class MetricCompareFunc(PairingCompareFunc):
    """Compares metrics of the table with limits; ``L2CompareFunc`` and so on are made from this class below."""

    COMPARISON: ClassVar[Comparison]
    THRESHOLD: ClassVar[type[MetricThreshold]]
    RESULT: ClassVar[type[CompareResult]]

    def thresholds_for(self, output_name: str) -> MetricThreshold:
        """The limits of an output."""
        limits = self.COMPARISON.limits.items()
        return self.THRESHOLD(*(_of_output(getattr(self, option), output_name, m.limit) for option, m in limits))

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: Cache) -> CompareResult:
        """The metrics, with their limits; raises ComparisonError if the output has no such metric."""
        values: list[float] = []
        for metric in self.COMPARISON.limits.values():
            if metric.from_arrays:
                value = metrics.from_arrays(metric, [(a, b)])
            else:
                value = getattr(_statistics(cache, names, a, b)[0], metric.name)
            if value is None or holds_strings(a):
                contents = "strings" if holds_strings(a) else f"{dtype_name(a)} of shape {a.shape}"
                raise errors.ComparisonError(
                    f"Output {names[0]!r} holds {contents}; {self.label} needs {metric.applies_to}."
                )
            values.append(value)
        return self.RESULT(*values, thresholds=self.thresholds_for(names[0]))


def _compare_func_class(comparison: Comparison) -> type[MetricCompareFunc]:
    limits = comparison.limits.items()
    allowed = " and the ".join(f"{m.limit_kind} {m.described} (``{option}``)" for option, m in limits)
    return make_dataclass(
        comparison.compare_func,
        [
            *((option, "PerOutput[float]", metric.limit) for option, metric in limits),
            ("check_shapes", "bool", True),
            ("fail_fast", "bool", False),
            ("find_output_func", "FindOutput | None", None),
        ],
        bases=(MetricCompareFunc,),
        unsafe_hash=True,
        namespace={
            "__doc__": f"Allows the {allowed}; other options as in :class:`SimpleCompareFunc`.",
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


class CompareFunc:
    """The compare functions by name.

    >>> outputs, golden = (IterationResult({"y": np.array(values)}) for values in ([1.0, 2.5], [1.0, 2.0]))
    >>> bool(CompareFunc.simple(atol=1e-3)(outputs, golden)["y"])
    False
    >>> CompareFunc.l2(l2_threshold=1)(outputs, golden)["y"].l2_norm
    0.5
    """

    simple = SimpleCompareFunc
    indices = IndicesCompareFunc


for _name, _kind in _OF_METRICS.items():
    setattr(CompareFunc, _name, _kind)
