"""The one table of metrics: what is measured of an output against its reference, and all that follows from it.

An entry makes a field of :class:`~trtops.comparator.OutputStatistics`, and so of every saved report, and an MLflow
metric ``error/<output>/<name>``. One with a tolerance makes a field of :class:`~trtops.comparator.Tolerances`. One with
a limit makes a compare function with its threshold, its result and their saved forms, and a command-line option.
A new metric is an entry here, the function that computes it, and its test.

The command line reads this table as it starts, so nothing here imports numpy: a function that computes a metric from
arrays is named by its path and imported when it is first called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from trtops.lazy import function

if TYPE_CHECKING:
    from trtops.comparator.arrays import Array
    from trtops.comparator.metrics.totals import Totals

T = TypeVar("T")
FromTotals: TypeAlias = "Callable[[Totals], float | None]"
FromArrays: TypeAlias = "Callable[[Sequence[tuple[Array, Array]]], float | None]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Metric:
    """One number for an output, over all iterations.

    Attributes:
        name: The field of the statistics, and the last part of the MLflow metric's name.
        label: What messages and help call it.
        unit: Its unit; empty for plain numbers and for what is in the output's own unit.
        better: Which way is better.
        from_totals: Computes it from what one pass over all elements adds up. Either this or ``from_arrays`` is given.
        from_arrays: Computes it from pairs of output and reference, one pair for each iteration, of the same shape,
            which are read once more for it.
        by_class: Whether it is computed from rows along the axis of classes, which is put last for it.
        recorded: Whether it is computed and kept for every output, and not only when it is asked for.
        applies_to: Which outputs have it, for messages about those for which it is None.
        log10: Whether its decimal logarithm is logged as well, since the MLflow UI shows 0.0004 as 0.00.
        column: Its heading in tables of outputs; empty if they do not show it.
        tolerance: The field of the tolerances that limits it, if one does.
        limit: What its compare function holds it against if no other limit is given; None if it has no such function.
        key: What threshold, result, compare function and option are named after: ``l2`` in ``L2Threshold`` and
            ``--l2-threshold``. The name, unless given.
        function: Its compare function's name, in :class:`~trtops.comparator.CompareFunc` and for ``--compare``. The
            key, unless given.
        title: What the line of a threshold calls it. The label with a capital, unless given.
        other_flags: More spellings of the option.
        polygraphy: Polygraphy's name for the number; None if Polygraphy has no such number.
    """

    name: str
    label: str
    unit: str = ""
    better: Literal["lower", "higher"]
    from_totals: FromTotals | None = None
    from_arrays: FromArrays | None = None
    by_class: bool = False
    recorded: bool = True
    applies_to: str = "numbers"
    log10: bool = False
    column: str = ""
    tolerance: str | None = None
    limit: float | None = None
    key: str = ""
    function: str = ""
    title: str = ""
    other_flags: tuple[str, ...] = ()
    polygraphy: str | None = None

    def __post_init__(self) -> None:
        key = self.key or self.name
        unless_given = {
            "key": key,
            "function": key,
            "title": self.label[:1].upper() + self.label[1:],
        }
        for name, value in unless_given.items():
            object.__setattr__(self, name, getattr(self, name) or value)

    @property
    def result_field(self) -> str:
        """The number's name in results of compare functions and their files, which are Polygraphy's where it has them."""
        return self.polygraphy or self.name

    @property
    def option(self) -> str:
        """The option of its compare function, and of the command line."""
        return f"{self.key}_threshold"

    @property
    def extreme(self) -> str:
        """What its limit is: the ``largest`` or the ``smallest`` value that passes."""
        return "largest" if self.better == "lower" else "smallest"

    @property
    def described(self) -> str:
        """The label, and the unit if it has one."""
        return f"{self.label} in {self.unit}" if self.unit else self.label

    @property
    def suffix(self) -> str:
        """What follows a number in its unit, with the space before it."""
        return f" {self.unit}" if self.unit else ""

    def measure(self, totals: Totals | None, pairs: Sequence[tuple[Array, Array]]) -> float | None:
        """Its value, by whichever function computes it; None if it does not apply to the output."""
        if self.from_totals is not None and totals is not None:
            return self.from_totals(totals)
        return None if self.from_arrays is None else self.from_arrays(pairs)

    def passes(self, value: float | None, limit: float) -> bool:
        """Whether a value is good enough. NaN never is, nor a value that is not known."""
        if value is None:
            return False
        return value <= limit if self.better == "lower" else value >= limit


def _error_metric(name: str, label: str, from_totals: FromTotals, column: str = "") -> Metric:
    """An entry for an error, which is held against the tolerance of its kind, whichever ``check_error_stat`` names."""
    return Metric(
        name=name,
        label=f"{label} error",
        better="lower",
        from_totals=from_totals,
        log10=True,
        column=column,
        tolerance="atol" if name.endswith("_abs") else "rtol",
        polygraphy=f"{name}diff",
    )


_SCORES = "floating-point scores, with an axis of classes behind another one"

ERRORS = (
    _error_metric("max_abs", "largest absolute", lambda totals: totals.max_abs, column="max abs"),
    _error_metric("max_rel", "largest relative", lambda totals: totals.max_rel, column="max rel"),
    _error_metric("mean_abs", "mean absolute", lambda totals: totals.mean(totals.sum_abs), column="mean abs"),
    _error_metric("mean_rel", "mean relative", lambda totals: totals.mean(totals.sum_rel)),
    _error_metric("median_abs", "median absolute", lambda totals: totals.median_abs),
    _error_metric("median_rel", "median relative", lambda totals: totals.median_rel),
)

METRICS = (
    *ERRORS,
    Metric(
        name="l2",
        label="L2 distance",
        title="L2 Norm",
        better="lower",
        from_totals=lambda totals: totals.l2(),
        log10=True,
        tolerance="max_l2",
        limit=1e-5,
        other_flags=("--l2-tolerance",),
        polygraphy="l2_norm",
    ),
    Metric(
        name="cosine",
        label="cosine similarity",
        title="Cosine Similarity",
        better="higher",
        from_totals=lambda totals: totals.cosine(),
        column="cosine",
        tolerance="min_cosine",
        limit=0.997,
        key="cosine_similarity",
        polygraphy="cosine_similarity",
    ),
    Metric(
        name="psnr",
        label="PSNR",
        unit="dB",
        better="higher",
        from_totals=lambda totals: totals.psnr(),
        tolerance="min_psnr",
        limit=30.0,
        other_flags=("--psnr-tolerance",),
        polygraphy="psnr",
    ),
    Metric(
        name="snr",
        label="SNR",
        unit="dB",
        better="higher",
        from_totals=lambda totals: totals.snr(),
        tolerance="min_snr",
        limit=20.0,
        other_flags=("--snr-tolerance",),
        polygraphy="snr",
    ),
    Metric(
        name="nrmse",
        label="error relative to the output's norm",
        better="lower",
        from_totals=lambda totals: totals.nrmse(),
        applies_to="numbers that are not all 0",
        log10=True,
        column="relative",
        tolerance="max_nrmse",
    ),
    Metric(
        name="correlation",
        label="correlation",
        better="higher",
        from_totals=lambda totals: totals.correlation(),
        applies_to="numbers that are not all the same",
        tolerance="min_correlation",
    ),
    Metric(
        name="agreement",
        label="share of equal values",
        better="higher",
        from_arrays=function("trtops.comparator.metrics.rows.balanced_agreement"),
        applies_to="integers, booleans and strings",
        tolerance="min_agreement",
    ),
    Metric(
        name="top1_agreement",
        label="top-1 agreement",
        better="higher",
        from_arrays=function("trtops.comparator.metrics.rows.top1_agreement"),
        by_class=True,
        applies_to=_SCORES,
        column="top-1",
        tolerance="min_top1_agreement",
    ),
    Metric(
        name="kl",
        label="KL divergence",
        unit="nats",
        better="lower",
        from_arrays=function("trtops.comparator.metrics.kl.kl_divergence"),
        by_class=True,
        applies_to=_SCORES,
        log10=True,
        column="KL",
        tolerance="max_kl",
        limit=1e-3,
    ),
    Metric(
        name="lpips",
        label="perceptual distance",
        title="LPIPS",
        better="lower",
        from_arrays=function("trtops.comparator.perceptual.lpips_distance"),
        recorded=False,  # it takes seconds, and needs torch
        applies_to="images with 1 or 3 channels",
        limit=0.1,
        function="perceptual_metrics",
        other_flags=("--lpips-tolerance",),
        polygraphy="lpips",
    ),
    Metric(
        name="nan_count",
        label="NaNs in the output",
        better="lower",
        from_totals=lambda totals: totals.nan_a,
    ),
    Metric(
        name="inf_count",
        label="infinities in the output",
        better="lower",
        from_totals=lambda totals: totals.inf_a,
    ),
    Metric(
        name="violations",
        label="elements that exceed both tolerances",
        better="lower",
        from_totals=lambda totals: totals.violations,
    ),
)

RECORDED = tuple(metric for metric in METRICS if metric.recorded)
LIMITED = tuple(metric for metric in METRICS if metric.tolerance is not None and metric not in ERRORS)
"""Those with a tolerance of their own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """What one compare function holds against limits.

    Attributes:
        name: The function's name, in :class:`~trtops.comparator.CompareFunc` and for ``--compare``.
        label: What messages call it.
        limits: The metrics, by the function's options that limit them.
        threshold: Name of the threshold's class.
        result: Name of the result's class.
        compare_func: Name of the compare function's class.
    """

    name: str
    label: str
    limits: Mapping[str, Metric]
    threshold: str
    result: str
    compare_func: str


def _compare_by(name: str, label: str, limits: Mapping[str, Metric], threshold: str) -> Comparison:
    stem = _camel_case(name)
    return Comparison(
        name=name,
        label=label,
        limits=limits,
        threshold=f"{_camel_case(threshold)}Threshold",
        result=f"{stem}Result",
        compare_func=f"{stem}CompareFunc",
    )


def _camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


_NAMED = {metric.name: metric for metric in METRICS}

COMPARISONS = (
    *(_compare_by(m.function, m.title, {m.option: m}, m.key) for m in METRICS if m.limit is not None),
    # Polygraphy's older functions, which evaluate two numbers in one.
    _compare_by(
        "distance_metrics",
        "distance",
        {"l2_tolerance": _NAMED["l2"], "cosine_similarity_threshold": _NAMED["cosine"]},
        "distance",
    ),
    _compare_by(
        "quality_metrics", "quality", {"psnr_tolerance": _NAMED["psnr"], "snr_tolerance": _NAMED["snr"]}, "quality"
    ),
)

MORE_EXPORTS = {
    **{name: "trtops.comparator.metric_results" for each in COMPARISONS for name in (each.threshold, each.result)},
    **{each.compare_func: "trtops.comparator.compare" for each in COMPARISONS},
}
"""The modules of the classes that are made of this table, by the classes' names (see :func:`trtops.lazy.exports`)."""


def with_fields(meanings: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Declare fields ``float | None = None`` that a class does not declare itself; to be put below ``@dataclass``.

    Args:
        meanings: What the fields mean, by their names. Those added are put into the class's documentation, which must
            end with its attributes.
    """

    def declare(cls: type[Any]) -> type[Any]:
        for name, meaning in meanings.items():
            if name not in cls.__annotations__:
                cls.__annotations__[name] = "float | None"
                setattr(cls, name, None)
                cls.__doc__ = f"{cls.__doc__}    {name}: {meaning}\n    "
        return cls

    return declare
