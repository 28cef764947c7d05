"""Run runners on the same inputs, compare their outputs, save both.

Names are Polygraphy's. :func:`compare_outputs` is the short way: two runs in, a report out. Names are imported on first
use. Thresholds, results and compare functions of single metrics come from :mod:`trtops.comparator.table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports, known_as

if TYPE_CHECKING:
    from trtops.comparator.accuracy import AccuracyResult, AccuracyResults
    from trtops.comparator.comparator import Comparator
    from trtops.comparator.compare import BaseCompareFunc, CompareFunc, IndicesCompareFunc, SimpleCompareFunc
    from trtops.comparator.data_loader import DataLoader, StreamingDataLoader
    from trtops.comparator.metric_results import CompareResult, OutputCompareResult, SimpleThreshold, Threshold
    from trtops.comparator.metrics import OutputStatistics, Quantile, statistics
    from trtops.comparator.postprocess import BasePostprocessFunc, PostprocessFunc, TopKPostprocessFunc
    from trtops.comparator.report import (
        ComparisonReport,
        OutputComparison,
        OutputTolerances,
        Tolerances,
        compare_outputs,
    )
    from trtops.comparator.results import IterationResult, LazyArray, RunResults

__getattr__, __dir__ = exports(__name__, table="trtops.comparator.table")
known_as(__name__, "struct")
