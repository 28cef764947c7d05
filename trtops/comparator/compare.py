"""Compare functions: what counts as a match between two iterations' outputs.

A compare function is called with two :class:`~trtops.comparator.results.IterationResult` and returns a match per
output. The functions here all take their numbers from :func:`trtops.comparator.metrics.statistics`; when several are
used together the statistics are computed once. In every one of them a per-output dict may stand for a value, in which
``""`` is for the outputs it does not name, and None stands for the default.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, make_dataclass
from typing import Any, ClassVar

import numpy as np

from trtops import errors
from trtops.comparator import metric_results
from trtops.comparator.arrays import Array, dtype_name, holds_strings
from trtops.comparator.metric_results import CompareResult, MetricThreshold, OutputCompareResult, SimpleThreshold
from trtops.comparator.metrics.difference import difference_of
from trtops.comparator.pairing import BaseCompareFunc, FindOutput, PerOutput, StatisticsCache, WithDefaults, of_output
from trtops.comparator.table import COMPARISONS, Comparison
from trtops.comparator.told import tell, tell_statistics

__all__ = [
    "BaseCompareFunc",
    "CompareFunc",
    "IndicesCompareFunc",
    "SimpleCompareFunc",
    *(comparison.compare_func for comparison in COMPARISONS),
]


@dataclass(frozen=True)
class SimpleCompareFunc(WithDefaults):
    """Holds errors against an absolute and a relative tolerance; too large is what exceeds both.

    Attributes:
        check_shapes: Whether shapes must be equal; else elements are compared if there are as many.
        rtol: Relative tolerance, as a fraction of the second output.
        atol: Absolute tolerance, in the output's own unit.
        fail_fast: Whether to stop at the first output that does not match.
        find_output_func: Finds counterparts: called with an output's name, its place and the other iteration, returns
            names in it, none to skip the output.
        check_error_stat: Which error is evaluated: ``elemwise`` (every element's), ``max``, ``mean``, ``median`` or
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
        """The tolerances for an output."""
        return SimpleThreshold(
            of_output(self.check_error_stat, output_name, "elemwise"),
            of_output(self.atol, output_name, 1e-5),
            of_output(self.rtol, output_name, 1e-5),
            of_output(self.error_quantile, output_name, 0.99),
        )

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> OutputCompareResult:
        """All statistics, held against the tolerances."""
        threshold = self.thresholds_for(names[0])
        found = cache.of(names, a, b, threshold, self.infinities_compare_equal)
        if self.save_heatmaps or self.show_heatmaps:
            from trtops.comparator import plot  # seldom wanted, and slow to import

            plot.draw_heatmaps(a, b, names[0], self.save_heatmaps, self.show_heatmaps)
        if self.save_error_metrics_plot or self.show_error_metrics_plot:
            from trtops.comparator import plot

            plot.draw_error_metrics(a, b, names[0], self.save_error_metrics_plot, self.show_error_metrics_plot)
        return OutputCompareResult.of(found, threshold)

    def tell_numbers(self, name: str, a: Array, b: Array, found: CompareResult | bool) -> None:
        """Tell the tolerances, those that would be required, and statistics of both errors, in Polygraphy's lines."""
        limits, numbers = self.thresholds_for(name), dict[str, float | None]()
        evaluated = limits.check_error_stat
        tell(
            logging.INFO,
            f"Tolerance: [abs={limits.atol:.5g}, rel={limits.rtol:.5g}] | Checking {evaluated} error",
            indent=2,
        )
        tell(logging.INFO, f"Error Metrics: {name}", indent=2)
        if isinstance(found, OutputCompareResult):
            numbers = dict(found.metric_values())
        extreme = "max" if evaluated == "elemwise" else evaluated
        needed = [numbers.get(f"{extreme}_{kind}") for kind in ("absdiff", "reldiff")]
        if None not in needed:
            also = {
                "elemwise": " (requirements may be lower if both abs/rel tolerances are set)",
                "quantile": f" (quantile={limits.error_quantile:.4g})",
            }.get(evaluated, "")
            absolute, relative = (f"{value:.5g}" for value in needed)
            text = f"Minimum Required Tolerance: {evaluated} error | [abs={absolute}] OR [rel={relative}]{also}"
            tell(logging.INFO, text, indent=3)
        if holds_strings(a):
            return
        difference = difference_of(a, b, self.infinities_compare_equal, nans_equal=False)
        _, reference, distance = difference(a.reshape(-1), b.reshape(-1))
        tell_statistics("Absolute Difference", distance.reshape(a.shape), failed=not found, indent=3)
        relative_errors = difference.relative(distance, reference).reshape(a.shape)
        tell_statistics("Relative Difference", relative_errors, failed=not found, indent=3)

    def verdict_line(self, name: str, found: CompareResult | bool) -> str:
        """Whether the difference is within the tolerances."""
        threshold = self.thresholds_for(name)
        said = "PASSED | Output: '{}' | Difference is within" if found else "FAILED | Output: '{}' | Difference exceeds"
        return f"{said.format(name)} tolerance (rel={threshold.rtol}, abs={threshold.atol})"


@dataclass(frozen=True)
class IndicesCompareFunc(WithDefaults):
    """Compares indices, such as those of a top-k: each must be found in the other output near its own place.

    Outputs are compared along their last axis. Results are plain truth values.

    Attributes:
        index_tolerance: How many places away an index may be found; as many of the last ones are not looked for.
        fail_fast: Whether to stop at the first output that does not match.
    """

    label: ClassVar[str] = "indices"
    index_tolerance: PerOutput[int] = 0
    fail_fast: bool = False
    check_shapes: bool = field(default=True, init=False, repr=False)
    find_output_func: FindOutput | None = field(default=None, init=False, repr=False)

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> bool:
        """Whether all indices are found in time."""
        tolerance = of_output(self.index_tolerance, names[0], 0)
        length = a.shape[-1] if a.ndim else 1
        if not length:
            return True
        rows_a, rows_b = a.reshape(-1, length), b.reshape(-1, length)
        kept = max(0, length - tolerance)
        differing = (rows_a[:, :kept] != rows_b[:, :kept]).any(axis=1)
        return all(_found_near(rows_a[row, :kept], rows_b[row], tolerance) for row in np.flatnonzero(differing))

    def verdict_line(self, name: str, found: CompareResult | bool) -> str:
        """Whether places are within the tolerance."""
        said = "PASSED | Difference is within" if found else "FAILED | Difference exceeds"
        return f"{said} index tolerance ({of_output(self.index_tolerance, name, 0)})"


def _found_near(wanted: Array, among: Array, tolerance: int) -> bool:
    places: dict[Any, int] = {}
    for place, value in enumerate(among.tolist()):
        places.setdefault(value, place)
    for place, value in enumerate(wanted.tolist()):
        if value != among[place] and (value not in places or abs(places[value] - place) > tolerance):
            return False
    return True


class MetricCompareFunc(WithDefaults):
    """Holds numbers of the table of metrics against limits.

    A class for each of the table's comparisons is derived from this one: ``L2CompareFunc`` and so on.
    """

    COMPARISON: ClassVar[Comparison]
    THRESHOLD: ClassVar[type[MetricThreshold]]
    RESULT: ClassVar[type[CompareResult]]

    def thresholds_for(self, output_name: str) -> MetricThreshold:
        """The limits for an output."""
        limits = self.COMPARISON.limits.items()
        return self.THRESHOLD(*(of_output(getattr(self, option), output_name, m.limit) for option, m in limits))

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> CompareResult:
        """The numbers, held against the limits.

        Raises:
            MetricUnavailableError: If the output has no such number, or it cannot be computed here.
        """
        values: list[float] = []
        for metric in self.COMPARISON.limits.values():
            value = getattr(cache.any(names, a, b), metric.name) if metric.recorded else metric.measure(None, [(a, b)])
            if value is None or holds_strings(a):
                found = "strings" if holds_strings(a) else f"{dtype_name(a)} of shape {a.shape}"
                raise errors.MetricUnavailableError(
                    f"Output {names[0]!r} holds {found}; {self.label} needs {metric.applies_to}."
                )
            values.append(value)
        return self.RESULT(*values, thresholds=self.thresholds_for(names[0]))


def _compare_func_class(comparison: Comparison) -> type[MetricCompareFunc]:
    limits = comparison.limits
    meanings = "".join(
        f"        {option}: The {metric.extreme} allowed {metric.described}.\n" for option, metric in limits.items()
    )
    return make_dataclass(
        comparison.compare_func,
        [
            *((option, "PerOutput[float]", metric.limit) for option, metric in limits.items()),
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


_COMPARE_FUNC_DOC = """Holds the {label} of outputs against a limit for each number.

    Attributes:
{meanings}        check_shapes: As in :class:`SimpleCompareFunc`.
        fail_fast: As in :class:`SimpleCompareFunc`.
        find_output_func: As in :class:`SimpleCompareFunc`.
    """

# Scripts find thresholds and results here as well.
globals().update({name: getattr(metric_results, name) for name in metric_results.__all__})

_DERIVED = {comparison.name: _compare_func_class(comparison) for comparison in COMPARISONS}
globals().update({kind.__name__: kind for kind in _DERIVED.values()})


class _FunctionsByName(type):
    """Lets a class have the table's compare functions as attributes."""

    def __getattr__(cls, name: str) -> type[BaseCompareFunc]:
        if name not in _DERIVED:
            known = ["simple", "indices", *_DERIVED]
            raise AttributeError(f"There is no compare function {name!r}. {errors.near(name, known)}")
        return _DERIVED[name]

    def __dir__(cls) -> list[str]:
        return sorted({*super().__dir__(), *_DERIVED})


class CompareFunc(metaclass=_FunctionsByName):
    """The compare functions by the names that scripts use: ``CompareFunc.simple(atol=1e-3)``, ``CompareFunc.l2()``."""

    simple = SimpleCompareFunc
    indices = IndicesCompareFunc
