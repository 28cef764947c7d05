"""Compare functions: what counts as a match between two iterations' outputs.

A compare function is called with two :class:`~trtops.comparator.results.IterationResult` and returns a match per
output. The functions here all take their numbers from :func:`trtops.comparator.metrics.statistics`; when several are
used together the statistics are computed once. In every one of them a per-output dict may stand for a value, in which
``""`` is for the outputs it does not name, and None stands for the default.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, TypeVar, cast

import numpy as np

from trtops import errors
from trtops.comparator import metrics
from trtops.comparator.arrays import Array, dtype_name, to_numpy
from trtops.comparator.judgements import (
    CompareResult,
    CosineSimilarityResult,
    CosineSimilarityThreshold,
    DistanceMetricsResult,
    DistanceThreshold,
    L2Result,
    L2Threshold,
    LpipsThreshold,
    OutputCompareResult,
    PerceptualMetricsResult,
    PsnrResult,
    PsnrThreshold,
    QualityMetricsResult,
    QualityThreshold,
    SimpleThreshold,
    SnrResult,
    SnrThreshold,
    Threshold,
)
from trtops.comparator.metrics import OutputStatistics
from trtops.comparator.results import IterationResult

__all__ = [
    "BaseCompareFunc",
    "CompareFunc",
    "CosineSimilarityCompareFunc",
    "DistanceMetricsCompareFunc",
    "IndicesCompareFunc",
    "L2CompareFunc",
    "PerceptualMetricsCompareFunc",
    "PsnrCompareFunc",
    "QualityMetricsCompareFunc",
    "SimpleCompareFunc",
    "SnrCompareFunc",
]

T = TypeVar("T")
PerOutput: TypeAlias = "T | Mapping[str, T]"
Matches: TypeAlias = "dict[str, CompareResult | bool]"
FindOutput: TypeAlias = "Callable[[str, int, IterationResult], Sequence[str] | None]"

_log = logging.getLogger(__name__)


class StatisticsCache:
    """Statistics of one pair of iterations, kept for the next compare function that wants them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[tuple[str, str], bool], OutputStatistics] = {}

    def any(self, names: tuple[str, str], a: Array, b: Array) -> OutputStatistics:
        """Statistics whatever the tolerances and levels."""
        return self._kept.get((names, False)) or self._measure(names, a, b, (), 1e-5, 1e-5, False)

    def of(
        self, names: tuple[str, str], a: Array, b: Array, threshold: SimpleThreshold, infinities_equal: bool
    ) -> OutputStatistics:
        """Statistics with the violations of, and the quantile level for, one threshold."""
        kept = self._kept.get((names, infinities_equal))
        level = threshold.error_quantile
        counted = kept is not None and (kept.atol, kept.rtol) == (threshold.atol, threshold.rtol)
        if kept and counted and (level == 0.5 or level in [q.level for q in kept.quantiles]):
            return kept
        return self._measure(names, a, b, (level,), threshold.atol, threshold.rtol, infinities_equal)

    def _measure(
        self, names: tuple[str, str], a: Array, b: Array, levels: Sequence[float], atol: float, rtol: float, inf: bool
    ) -> OutputStatistics:
        quantiles = tuple(sorted({*metrics.QUANTILES, *levels}))
        found = metrics.statistics(a, b, quantiles=quantiles, atol=atol, rtol=rtol, infinities_equal=inf)
        self._kept[names, inf] = found
        return found


class BaseCompareFunc:
    """What compare functions share: pairing outputs, aligning shapes, stopping early.

    Subclasses say in :meth:`thresholds_for` what they judge by, and in :meth:`match` how.
    """

    label: ClassVar[str] = ""

    check_shapes: bool
    fail_fast: bool
    find_output_func: FindOutput | None

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
        """As calling it, with statistics shared with other compare functions on the same two iterations."""
        self._warn_of_unknown_outputs({*iter_result0, *iter_result1, ""})
        matches: Matches = {}
        for name0, name1 in _counterparts(iter_result0, iter_result1, self.find_output_func):
            found = self._match_pair(name0, iter_result0[name0], name1, iter_result1[name1], cache)
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
        return matches

    def thresholds_for(self, output_name: str) -> Threshold:
        """What an output's numbers are held against."""
        raise NotImplementedError

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> CompareResult | bool:
        """Compare two arrays of one shape.

        Args:
            names: The output's name, and its counterpart's.
            a: The output under test.
            b: Its counterpart.
            cache: Where statistics come from.
        """
        raise NotImplementedError

    def _match_pair(self, name0: str, out0: Any, name1: str, out1: Any, cache: StatisticsCache) -> CompareResult | bool:
        a, b = to_numpy(out0, f"Output {name0!r}"), to_numpy(out1, f"Output {name1!r}")
        if a.shape != b.shape:
            aligned = None if self.check_shapes else _reshaped(b, a.shape)
            if aligned is None:
                _log.error("FAILED | Output %r has shape %s, its counterpart %r %s", name0, a.shape, name1, b.shape)
                return False
            b = aligned
        found = self.match((name0, name1), a, b, cache)
        if not isinstance(found, bool):
            found.output0_name, found.output1_name = name0, name1
        self._report(name0, a, found)
        return found

    def _report(self, name: str, a: Array, found: CompareResult | bool) -> None:
        passed = bool(found)
        level = logging.INFO if passed else logging.ERROR
        if _log.isEnabledFor(level):
            line = None if isinstance(found, bool) else found.describe()
            text = line[0] if line else f"{self.label} {found if not isinstance(found, bool) else ''}".rstrip()
            verdict = "PASSED" if passed else "FAILED"
            _log.log(level, "%s | Output %r (%s, shape %s) | %s", verdict, name, dtype_name(a), a.shape, text)

    def _warn_of_unknown_outputs(self, known: set[str]) -> None:
        for option in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, option.name)
            if isinstance(value, Mapping):
                for name in value:
                    if name not in known:
                        _log.warning(
                            "%s names output %r, which does not exist. %s", option.name, name, errors.near(name, known)
                        )


class _WithDefaults(BaseCompareFunc):
    """Options in which None stands for the default."""

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):  # type: ignore[arg-type]
            if getattr(self, option.name) is None and option.default is not dataclasses.MISSING:
                object.__setattr__(self, option.name, option.default)


def _of(value: PerOutput[T], output: str, default: T) -> T:
    """The value for one output."""
    if isinstance(value, Mapping):
        return cast("T", value.get(output, value.get("", default)))
    return value


def _counterparts(
    result0: IterationResult, result1: IterationResult, find: FindOutput | None
) -> Iterator[tuple[str, str]]:
    for index, name0 in enumerate(result0):
        names = _find_output(name0, index, result1, result0) if find is None else find(name0, index, result1)
        for name1 in names or []:
            if name1 in result1:
                yield name0, name1
            else:
                _log.warning("Output %r is skipped: its counterpart %r is not in %s", name0, name1, result1.runner_name)


def _find_output(name: str, index: int, where: IterationResult, base: IterationResult) -> list[str]:
    """The counterpart by name, or failing that by a name inside the other, or by place; never one that is taken."""
    if name in where:
        return [name]
    near = [other for other in where if name.lower() in other.lower() or other.lower() in name.lower()]
    found = near[0] if near else (list(where)[index] if index < len(where) else None)
    if found is None or found in base:
        _log.warning("Output %r is skipped: %s has no counterpart for it", name, where.runner_name)
        return []
    _log.warning("Output %r is taken to correspond to %r of %s", name, found, where.runner_name)
    return [found]


def _reshaped(array: Array, shape: tuple[int, ...]) -> Array | None:
    """The array in another shape: its axes permuted if that does it, else its elements in a row; None if it has others."""
    if sorted(array.shape) == sorted(shape):
        left = list(range(array.ndim))
        axes = []
        for dim in shape:
            axes.append(next(axis for axis in left if array.shape[axis] == dim))
            left.remove(axes[-1])
        moved: Array = array.transpose(axes)
        return moved
    return array.reshape(shape) if array.size == math.prod(shape) else None


@dataclass(frozen=True)
class SimpleCompareFunc(_WithDefaults):
    """Holds errors against an absolute and a relative tolerance; too large is what exceeds both.

    Attributes:
        check_shapes: Whether shapes must be equal; else elements are compared if there are as many.
        rtol: Relative tolerance, as a fraction of the second output.
        atol: Absolute tolerance, in the output's own unit.
        fail_fast: Whether to stop at the first output that does not match.
        find_output_func: Finds counterparts: called with an output's name, its place and the other iteration, returns
            names in it, none to skip the output.
        check_error_stat: Which error is judged: ``elemwise`` (every element's), ``max``, ``mean``, ``median`` or
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
            _of(self.check_error_stat, output_name, "elemwise"),
            _of(self.atol, output_name, 1e-5),
            _of(self.rtol, output_name, 1e-5),
            _of(self.error_quantile, output_name, 0.99),
        )

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> OutputCompareResult:
        """All statistics, held against the tolerances."""
        threshold = self.thresholds_for(names[0])
        found = cache.of(names, a, b, threshold, self.infinities_compare_equal)
        if self.save_heatmaps or self.show_heatmaps:
            from trtops.comparator import plot

            plot.draw_heatmaps(a, b, names[0], self.save_heatmaps, self.show_heatmaps)
        if self.save_error_metrics_plot or self.show_error_metrics_plot:
            from trtops.comparator import plot

            plot.draw_error_metrics(a, b, names[0], self.save_error_metrics_plot, self.show_error_metrics_plot)
        return OutputCompareResult.of(found, threshold)


@dataclass(frozen=True)
class IndicesCompareFunc(_WithDefaults):
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
        tolerance = _of(self.index_tolerance, names[0], 0)
        length = a.shape[-1] if a.ndim else 1
        if not length:
            return True
        rows_a, rows_b = a.reshape(-1, length), b.reshape(-1, length)
        kept = max(0, length - tolerance)
        differing = (rows_a[:, :kept] != rows_b[:, :kept]).any(axis=1)
        return all(_found_near(rows_a[row, :kept], rows_b[row], tolerance) for row in np.flatnonzero(differing))


def _found_near(wanted: Array, among: Array, tolerance: int) -> bool:
    places: dict[Any, int] = {}
    for place, value in enumerate(among.tolist()):
        places.setdefault(value, place)
    for place, value in enumerate(wanted.tolist()):
        if value != among[place] and (value not in places or abs(places[value] - place) > tolerance):
            return False
    return True


class _MetricFunc(_WithDefaults):
    """Compare functions that take numbers from the statistics as they are."""

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> CompareResult:
        found = cache.any(names, a, b)
        if found.cosine is None:
            raise errors.ComparisonError(f"Output {names[0]!r} holds strings; {self.label} needs numbers.")
        return self.result(found, self.thresholds_for(names[0]))

    def result(self, statistics: OutputStatistics, threshold: Threshold) -> CompareResult:
        """The result for an output's statistics."""
        raise NotImplementedError


@dataclass(frozen=True)
class L2CompareFunc(_MetricFunc):
    """Holds the Euclidean distance against a limit.

    Attributes:
        l2_threshold: The largest allowed distance.
        check_shapes: As in :class:`SimpleCompareFunc`.
        fail_fast: As there.
        find_output_func: As there.
    """

    label: ClassVar[str] = "L2 norm"

    l2_threshold: PerOutput[float] = 1e-5
    check_shapes: bool = True
    fail_fast: bool = False
    find_output_func: FindOutput | None = None

    def thresholds_for(self, output_name: str) -> L2Threshold:
        """The limit for an output."""
        return L2Threshold(_of(self.l2_threshold, output_name, 1e-5))

    def result(self, statistics: OutputStatistics, threshold: Threshold) -> L2Result:
        """The distance."""
        return L2Result(statistics.l2, thresholds=threshold)


@dataclass(frozen=True)
class CosineSimilarityCompareFunc(_MetricFunc):
    """Holds the cosine similarity against a limit.

    Attributes:
        cosine_similarity_threshold: The smallest allowed similarity, between -1 and 1.
        check_shapes: As in :class:`SimpleCompareFunc`.
        fail_fast: As there.
        find_output_func: As there.
    """

    label: ClassVar[str] = "Cosine similarity"

    cosine_similarity_threshold: PerOutput[float] = 0.997
    check_shapes: bool = True
    fail_fast: bool = False
    find_output_func: FindOutput | None = None

    def thresholds_for(self, output_name: str) -> CosineSimilarityThreshold:
        """The limit for an output."""
        return CosineSimilarityThreshold(_of(self.cosine_similarity_threshold, output_name, 0.997))

    def result(self, statistics: OutputStatistics, threshold: Threshold) -> CosineSimilarityResult:
        """The similarity."""
        return CosineSimilarityResult(cast("float", statistics.cosine), thresholds=threshold)


@dataclass(frozen=True)
class PsnrCompareFunc(_MetricFunc):
    """Holds the peak signal-to-noise ratio against a limit.

    Attributes:
        psnr_threshold: The smallest allowed ratio, in dB.
        check_shapes: As in :class:`SimpleCompareFunc`.
        fail_fast: As there.
        find_output_func: As there.
    """

    label: ClassVar[str] = "PSNR"

    psnr_threshold: PerOutput[float] = 30.0
    check_shapes: bool = True
    fail_fast: bool = False
    find_output_func: FindOutput | None = None

    def thresholds_for(self, output_name: str) -> PsnrThreshold:
        """The limit for an output."""
        return PsnrThreshold(_of(self.psnr_threshold, output_name, 30.0))

    def result(self, statistics: OutputStatistics, threshold: Threshold) -> PsnrResult:
        """The ratio."""
        return PsnrResult(cast("float", statistics.psnr), thresholds=threshold)


@dataclass(frozen=True)
class SnrCompareFunc(_MetricFunc):
    """Holds the signal-to-noise ratio against a limit.

    Attributes:
        snr_threshold: The smallest allowed ratio, in dB.
        check_shapes: As in :class:`SimpleCompareFunc`.
        fail_fast: As there.
        find_output_func: As there.
    """

    label: ClassVar[str] = "SNR"

    snr_threshold: PerOutput[float] = 20.0
    check_shapes: bool = True
    fail_fast: bool = False
    find_output_func: FindOutput | None = None

    def thresholds_for(self, output_name: str) -> SnrThreshold:
        """The limit for an output."""
        return SnrThreshold(_of(self.snr_threshold, output_name, 20.0))

    def result(self, statistics: OutputStatistics, threshold: Threshold) -> SnrResult:
        """The ratio."""
        return SnrResult(cast("float", statistics.snr), thresholds=threshold)


@dataclass(frozen=True)
class DistanceMetricsCompareFunc(_MetricFunc):
    """Holds distance and similarity against limits, in one.

    Attributes:
        l2_tolerance: The largest allowed Euclidean distance.
        cosine_similarity_threshold: The smallest allowed cosine similarity.
        check_shapes: As in :class:`SimpleCompareFunc`.
        fail_fast: As there.
        find_output_func: As there.
    """

    label: ClassVar[str] = "distance"

    l2_tolerance: PerOutput[float] = 1e-5
    cosine_similarity_threshold: PerOutput[float] = 0.997
    check_shapes: bool = True
    fail_fast: bool = False
    find_output_func: FindOutput | None = None

    def thresholds_for(self, output_name: str) -> DistanceThreshold:
        """The limits for an output."""
        return DistanceThreshold(
            _of(self.l2_tolerance, output_name, 1e-5), _of(self.cosine_similarity_threshold, output_name, 0.997)
        )

    def result(self, statistics: OutputStatistics, threshold: Threshold) -> DistanceMetricsResult:
        """Both numbers."""
        return DistanceMetricsResult(statistics.l2, cast("float", statistics.cosine), thresholds=threshold)


@dataclass(frozen=True)
class QualityMetricsCompareFunc(_MetricFunc):
    """Holds both signal-to-noise ratios against limits, in one.

    Attributes:
        psnr_tolerance: The smallest allowed PSNR in dB.
        snr_tolerance: The smallest allowed SNR in dB.
        check_shapes: As in :class:`SimpleCompareFunc`.
        fail_fast: As there.
        find_output_func: As there.
    """

    label: ClassVar[str] = "quality"

    psnr_tolerance: PerOutput[float] = 30.0
    snr_tolerance: PerOutput[float] = 20.0
    check_shapes: bool = True
    fail_fast: bool = False
    find_output_func: FindOutput | None = None

    def thresholds_for(self, output_name: str) -> QualityThreshold:
        """The limits for an output."""
        return QualityThreshold(_of(self.psnr_tolerance, output_name, 30.0), _of(self.snr_tolerance, output_name, 20.0))

    def result(self, statistics: OutputStatistics, threshold: Threshold) -> QualityMetricsResult:
        """Both numbers."""
        return QualityMetricsResult(cast("float", statistics.psnr), cast("float", statistics.snr), thresholds=threshold)


@dataclass(frozen=True)
class PerceptualMetricsCompareFunc(_WithDefaults):
    """Holds the perceptual distance of images (LPIPS with AlexNet, on the CPU) against a limit.

    Needs torch and lpips. What cannot be computed is an error, never a match.

    Attributes:
        lpips_threshold: The largest allowed distance; alike images are below 0.1.
        check_shapes: As in :class:`SimpleCompareFunc`.
        fail_fast: As there.
        find_output_func: As there.
    """

    label: ClassVar[str] = "LPIPS"

    lpips_threshold: PerOutput[float] = 0.1
    check_shapes: bool = True
    fail_fast: bool = False
    find_output_func: FindOutput | None = None
    _model: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def thresholds_for(self, output_name: str) -> LpipsThreshold:
        """The limit for an output."""
        return LpipsThreshold(_of(self.lpips_threshold, output_name, 0.1))

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> PerceptualMetricsResult:
        """The distance."""
        if not self._model:
            self._model.append(_lpips_model())
        import torch

        scale = 255.0 if max(float(a.max(initial=0)), float(b.max(initial=0))) > 1 else 1.0
        images = [torch.from_numpy(_as_images(names[0], array, scale)) for array in (a, b)]
        with torch.no_grad():
            distance = float(self._model[0](*images).mean())
        return PerceptualMetricsResult(distance, thresholds=self.thresholds_for(names[0]))


def _lpips_model() -> Any:
    try:
        import lpips
        import torch
    except ImportError as exc:
        raise errors.MetricUnavailableError(
            f"The perceptual metric needs torch and lpips ({exc}). Install them, or compare by another metric."
        ) from None
    try:
        return lpips.LPIPS(net="alex", verbose=False).to(torch.device("cpu")).eval()
    except (OSError, RuntimeError) as exc:
        raise errors.MetricUnavailableError(f"The perceptual metric's model could not be loaded: {exc}") from exc


def _as_images(name: str, array: Array, scale: float) -> Array:
    """An array as RGB images ``(N, 3, H, W)`` between -1 and 1, from values in ``[0, scale]``."""
    images = array[None] if array.ndim == 3 else array
    if images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.size:
        raise errors.MetricUnavailableError(
            f"Output {name!r} has shape {array.shape}; the perceptual metric needs images with 1 or 3 channels."
        )
    scaled = images.astype(np.float32) / np.float32(scale)
    if scaled.min() >= 0:
        scaled = scaled * 2 - 1
    return np.ascontiguousarray(np.broadcast_to(scaled, (images.shape[0], 3, *images.shape[2:])))


class CompareFunc:
    """The compare functions by the names that scripts use: ``CompareFunc.simple(atol=1e-3)`` and so on."""

    simple = SimpleCompareFunc
    indices = IndicesCompareFunc
    l2 = L2CompareFunc
    cosine_similarity = CosineSimilarityCompareFunc
    psnr = PsnrCompareFunc
    snr = SnrCompareFunc
    distance_metrics = DistanceMetricsCompareFunc
    quality_metrics = QualityMetricsCompareFunc
    perceptual_metrics = PerceptualMetricsCompareFunc
