"""The table of metrics of an output and its reference.

An entry makes a field of :class:`~trtops.comparator.OutputStatistics`, and so of every saved report, and an MLflow
metric ``error/<output>/<name>``. An entry with a tolerance makes a field of :class:`~trtops.comparator.Tolerances`. An
entry with a limit makes a compare function with its threshold and result, and a command-line option. A new metric is an
entry here, the function that computes it, and its test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from trtops.lazy import function
from trtops.record import setting

if TYPE_CHECKING:
    from trtops.comparator.arrays import Array
    from trtops.comparator.metrics.totals import Totals

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Metric:
    """One number for an output, over all iterations."""

    name: str  # the field of the statistics, and the last part of the MLflow metric's name
    label: str  # in messages and help
    better: Literal["lower", "higher"]
    # Called with Totals; or if `from_arrays`, with pairs of output and reference, one pair for each iteration.
    compute: Callable[..., float | None]
    _: KW_ONLY
    from_arrays: bool = False
    unit: str = ""  # empty for plain numbers and for errors in the output's own unit
    by_class: bool = False  # whether it is computed with the axis of classes last
    applies_to: str = "numbers"  # it is None for other outputs
    logged: bool = False  # whether its worst value is a metric in MLflow; all are in the comparison's artifact
    column: str = ""  # heading in tables of outputs, if they show it
    tolerance: str | None = None  # the field of the tolerances that limits it
    limit: float | None = None  # default limit of its compare function, if it has one
    key: str = ""  # `l2` in `CompareFunc.l2`, `L2Threshold` and `--l2-threshold`; the name by default
    title: str = ""  # in the line of a threshold; the label by default
    other_flags: tuple[str, ...] = ()  # further spellings of the option
    polygraphy: str | None = None  # Polygraphy's name for the number, if it has one

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.name)
        object.__setattr__(self, "title", self.title or self.label[:1].upper() + self.label[1:])

    @property
    def result_field(self) -> str:
        """Its name in results of compare functions and their files: Polygraphy's, or its own."""
        return self.polygraphy or self.name

    @property
    def option(self) -> str:
        """The option of its compare function, and of the command line."""
        return f"{self.key}_threshold"

    @property
    def limit_kind(self) -> str:
        """``largest`` or ``smallest``: the limit is the largest or the smallest passing value."""
        return "largest" if self.better == "lower" else "smallest"

    @property
    def described(self) -> str:
        """The label, and the unit if it has one."""
        return f"{self.label} in {self.unit}" if self.unit else self.label

    @property
    def suffix(self) -> str:
        """The unit with a space before it, to put after a number."""
        return f" {self.unit}" if self.unit else ""

    def measure(self, totals: Totals | None, pairs: Sequence[tuple[Array, Array]]) -> float | None:
        """Its value; None if it does not apply to the output."""
        return self.compute(pairs if self.from_arrays else totals)

    def passes(self, value: float | None, limit: float) -> bool:
        """Return True if a value is within the limit; NaN and None are not."""
        if value is None:
            return False
        return value <= limit if self.better == "lower" else value >= limit


def _error(name: str, label: str, compute: Callable[[Totals], float], column: str = "") -> Metric:
    tolerance = "atol" if name.endswith("_abs") else "rtol"
    return Metric(
        name, f"{label} error", "lower", compute, logged=name.startswith("max_"), column=column, tolerance=tolerance,
        polygraphy=f"{name}diff",
    )  # fmt: skip


# The command line reads this table as it starts, and numpy is slow to import: functions that need it are named by path.
_SCORES = "floating-point scores, with an axis of classes behind another one"
_agreement = function("trtops.comparator.metrics.rows.balanced_agreement")
_top1 = function("trtops.comparator.metrics.rows.top1_agreement")
_kl = function("trtops.comparator.metrics.rows.kl_divergence")

ERRORS = (
    _error("max_abs", "largest absolute", lambda t: t.abs.max, column="max abs"),
    _error("max_rel", "largest relative", lambda t: t.rel.max, column="max rel"),
    _error("mean_abs", "mean absolute", lambda t: t.mean(t.abs.sum), column="mean abs"),
    _error("mean_rel", "mean relative", lambda t: t.mean(t.rel.sum)),
    _error("median_abs", "median absolute", lambda t: t.abs.median),
    _error("median_rel", "median relative", lambda t: t.rel.median),
)

METRICS = (
    *ERRORS,
    Metric(
        "l2", "L2 distance", "lower", lambda t: t.l2(), title="L2 Norm",
        tolerance="max_l2", limit=1e-5, other_flags=("--l2-tolerance",), polygraphy="l2_norm",
    ),
    Metric(
        "cosine", "cosine similarity", "higher", lambda t: t.cosine(), title="Cosine Similarity", column="cosine",
        logged=True, tolerance="min_cosine", limit=0.997, key="cosine_similarity", polygraphy="cosine_similarity",
    ),
    Metric(
        "psnr", "PSNR", "higher", lambda t: t.psnr(), unit="dB",
        tolerance="min_psnr", limit=30.0, other_flags=("--psnr-tolerance",), polygraphy="psnr",
    ),
    Metric(
        "snr", "SNR", "higher", lambda t: t.snr(), unit="dB",
        tolerance="min_snr", limit=20.0, other_flags=("--snr-tolerance",), polygraphy="snr",
    ),
    Metric(
        "nrmse", "error relative to the output's norm", "lower", lambda t: t.nrmse(),
        applies_to="numbers that are not all 0", logged=True, column="relative", tolerance="max_nrmse",
    ),
    Metric(
        "correlation", "correlation", "higher", lambda t: t.correlation(),
        applies_to="numbers that are not all the same", tolerance="min_correlation",
    ),
    Metric(
        "agreement", "share of equal values", "higher", _agreement, from_arrays=True,
        applies_to="integers, booleans and strings", tolerance="min_agreement",
    ),
    Metric(
        "top1_agreement", "top-1 agreement", "higher", _top1, from_arrays=True,
        by_class=True, applies_to=_SCORES, column="top-1", tolerance="min_top1_agreement",
    ),
    Metric(
        "kl", "KL divergence", "lower", _kl, from_arrays=True, unit="nats",
        by_class=True, applies_to=_SCORES, column="KL", tolerance="max_kl", limit=1e-3,
    ),
    Metric("nan_count", "NaNs in the output", "lower", lambda t: t.nan_a),
    Metric("inf_count", "infinities in the output", "lower", lambda t: t.inf_a),
    Metric("violations", "elements that exceed both tolerances", "lower", lambda t: t.violations),
)  # fmt: skip

LIMITED = tuple(metric for metric in METRICS if metric.tolerance is not None and metric not in ERRORS)
"""Metrics with their own tolerance."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """One compare function of metrics."""

    name: str
    label: str
    limits: Mapping[str, Metric]  # by option
    threshold: str  # these three are names of classes
    result: str
    compare_func: str


def _comparison(name: str, label: str, limits: Mapping[str, Metric], key: str) -> Comparison:
    of_name, of_key = (text.title().replace("_", "") for text in (name, key))
    return Comparison(name, label, limits, f"{of_key}Threshold", f"{of_name}Result", f"{of_name}CompareFunc")


_NAMED = {metric.name: metric for metric in METRICS}
_DISTANCE = {"l2_tolerance": _NAMED["l2"], "cosine_similarity_threshold": _NAMED["cosine"]}
_QUALITY = {"psnr_tolerance": _NAMED["psnr"], "snr_tolerance": _NAMED["snr"]}

COMPARISONS = (
    *(_comparison(m.key, m.title, {m.option: m}, m.key) for m in METRICS if m.limit is not None),
    # Functions of Polygraphy 0.49, which evaluate two numbers in one.
    _comparison("distance_metrics", "distance", _DISTANCE, "distance"),
    _comparison("quality_metrics", "quality", _QUALITY, "quality"),
)

MORE_EXPORTS: dict[str, str] = {}
"""The modules of the classes that are made of this table, by the classes' names (see :func:`trtops.lazy.exports`)."""
for _row in COMPARISONS:
    MORE_EXPORTS |= dict.fromkeys((_row.threshold, _row.result), "trtops.comparator.metric_results")
    MORE_EXPORTS[_row.compare_func] = "trtops.comparator.compare"


def with_fields(meanings: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Declare fields ``float | None = None``, unless the class declares them itself; to be put below ``@dataclass``.

    Their descriptions, if there are any, are appended to the class's docstring, which must end with its attributes.
    """

    def declare(cls: type[Any]) -> type[Any]:
        for name, meaning in meanings.items():
            if name not in cls.__annotations__:
                cls.__annotations__[name] = "float | None"
                setattr(cls, name, setting(None, least=None, infinite=True))
                cls.__doc__ = f"{cls.__doc__}    {name}: {meaning}\n    " if meaning else cls.__doc__
        return cls

    return declare
