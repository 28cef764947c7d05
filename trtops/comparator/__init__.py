"""Compares what runners say: running them on the same inputs, judging the outputs, saving both.

Names are those of the field's standard tool. :func:`compare_outputs` is the short way: two runs in, a report out. Names are
imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtops.comparator.comparator import Comparator
    from trtops.comparator.compare import (
        BaseCompareFunc,
        CompareFunc,
        CosineSimilarityCompareFunc,
        DistanceMetricsCompareFunc,
        IndicesCompareFunc,
        L2CompareFunc,
        PerceptualMetricsCompareFunc,
        PsnrCompareFunc,
        QualityMetricsCompareFunc,
        SimpleCompareFunc,
        SnrCompareFunc,
    )
    from trtops.comparator.data_loader import DataLoader, StreamingDataLoader
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
    from trtops.comparator.metrics import OutputStatistics, Quantile, statistics, within
    from trtops.comparator.postprocess import BasePostprocessFunc, PostprocessFunc, TopKPostprocessFunc
    from trtops.comparator.report import (
        ComparisonReport,
        OutputComparison,
        OutputTolerances,
        Tolerances,
        compare_outputs,
    )
    from trtops.comparator.results import AccuracyResult, AccuracyResults, IterationResult, LazyArray, RunResults

_MODULES = {
    "comparator": ("Comparator",),
    "compare": (
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
    ),
    "data_loader": ("DataLoader", "StreamingDataLoader"),
    "judgements": (
        "CompareResult",
        "CosineSimilarityResult",
        "CosineSimilarityThreshold",
        "DistanceMetricsResult",
        "DistanceThreshold",
        "L2Result",
        "L2Threshold",
        "LpipsThreshold",
        "OutputCompareResult",
        "PerceptualMetricsResult",
        "PsnrResult",
        "PsnrThreshold",
        "QualityMetricsResult",
        "QualityThreshold",
        "SimpleThreshold",
        "SnrResult",
        "SnrThreshold",
        "Threshold",
    ),
    "metrics": ("OutputStatistics", "Quantile", "statistics", "within"),
    "postprocess": ("BasePostprocessFunc", "PostprocessFunc", "TopKPostprocessFunc"),
    "report": ("ComparisonReport", "OutputComparison", "OutputTolerances", "Tolerances", "compare_outputs"),
    "results": ("AccuracyResult", "AccuracyResults", "IterationResult", "LazyArray", "RunResults"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AccuracyResult",
    "AccuracyResults",
    "BaseCompareFunc",
    "BasePostprocessFunc",
    "Comparator",
    "CompareFunc",
    "CompareResult",
    "ComparisonReport",
    "CosineSimilarityCompareFunc",
    "CosineSimilarityResult",
    "CosineSimilarityThreshold",
    "DataLoader",
    "DistanceMetricsCompareFunc",
    "DistanceMetricsResult",
    "DistanceThreshold",
    "IndicesCompareFunc",
    "IterationResult",
    "L2CompareFunc",
    "L2Result",
    "L2Threshold",
    "LazyArray",
    "LpipsThreshold",
    "OutputCompareResult",
    "OutputComparison",
    "OutputStatistics",
    "OutputTolerances",
    "PerceptualMetricsCompareFunc",
    "PerceptualMetricsResult",
    "PostprocessFunc",
    "PsnrCompareFunc",
    "PsnrResult",
    "PsnrThreshold",
    "QualityMetricsCompareFunc",
    "QualityMetricsResult",
    "QualityThreshold",
    "Quantile",
    "RunResults",
    "SimpleCompareFunc",
    "SimpleThreshold",
    "SnrCompareFunc",
    "SnrResult",
    "SnrThreshold",
    "StreamingDataLoader",
    "Threshold",
    "Tolerances",
    "TopKPostprocessFunc",
    "compare_outputs",
    "statistics",
    "within",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
