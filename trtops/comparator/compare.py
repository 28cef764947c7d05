"""Compare functions: what counts as a match between two iterations' outputs.

A compare function is called with two :class:`~trtops.comparator.results.IterationResult` and returns a match per
output. The functions here all take their numbers from :func:`trtops.comparator.metrics.statistics`; when several are
used together the statistics are computed once. In every one of them a per-output dict may stand for a value, in which
``""`` is for the outputs it does not name, and None stands for the default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np

from trtops import errors
from trtops.comparator import perceptual
from trtops.comparator.arrays import Array
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
from trtops.comparator.pairing import BaseCompareFunc, FindOutput, PerOutput, StatisticsCache, WithDefaults, of_output

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
            from trtops.comparator import plot

            plot.draw_heatmaps(a, b, names[0], self.save_heatmaps, self.show_heatmaps)
        if self.save_error_metrics_plot or self.show_error_metrics_plot:
            from trtops.comparator import plot

            plot.draw_error_metrics(a, b, names[0], self.save_error_metrics_plot, self.show_error_metrics_plot)
        return OutputCompareResult.of(found, threshold)


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


def _found_near(wanted: Array, among: Array, tolerance: int) -> bool:
    places: dict[Any, int] = {}
    for place, value in enumerate(among.tolist()):
        places.setdefault(value, place)
    for place, value in enumerate(wanted.tolist()):
        if value != among[place] and (value not in places or abs(places[value] - place) > tolerance):
            return False
    return True


class _MetricFunc(WithDefaults):
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
        return L2Threshold(of_output(self.l2_threshold, output_name, 1e-5))

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
        return CosineSimilarityThreshold(of_output(self.cosine_similarity_threshold, output_name, 0.997))

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
        return PsnrThreshold(of_output(self.psnr_threshold, output_name, 30.0))

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
        return SnrThreshold(of_output(self.snr_threshold, output_name, 20.0))

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
            of_output(self.l2_tolerance, output_name, 1e-5),
            of_output(self.cosine_similarity_threshold, output_name, 0.997),
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
        return QualityThreshold(
            of_output(self.psnr_tolerance, output_name, 30.0), of_output(self.snr_tolerance, output_name, 20.0)
        )

    def result(self, statistics: OutputStatistics, threshold: Threshold) -> QualityMetricsResult:
        """Both numbers."""
        return QualityMetricsResult(cast("float", statistics.psnr), cast("float", statistics.snr), thresholds=threshold)


@dataclass(frozen=True)
class PerceptualMetricsCompareFunc(WithDefaults):
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
        return LpipsThreshold(of_output(self.lpips_threshold, output_name, 0.1))

    def match(self, names: tuple[str, str], a: Array, b: Array, cache: StatisticsCache) -> PerceptualMetricsResult:
        """The distance."""
        if not self._model:
            self._model.append(perceptual.load_model())
        import torch

        scale = 255.0 if max(float(a.max(initial=0)), float(b.max(initial=0))) > 1 else 1.0
        images = [torch.from_numpy(perceptual.as_images(names[0], array, scale)) for array in (a, b)]
        with torch.no_grad():
            distance = float(self._model[0](*images).mean())
        return PerceptualMetricsResult(distance, thresholds=self.thresholds_for(names[0]))


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
