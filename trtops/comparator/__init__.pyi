from typing import Any

from trtops.comparator.accuracy import AccuracyResult as AccuracyResult
from trtops.comparator.accuracy import AccuracyResults as AccuracyResults
from trtops.comparator.comparator import Comparator as Comparator
from trtops.comparator.compare import BaseCompareFunc as BaseCompareFunc
from trtops.comparator.compare import CompareFunc as CompareFunc
from trtops.comparator.compare import IndicesCompareFunc as IndicesCompareFunc
from trtops.comparator.compare import SimpleCompareFunc as SimpleCompareFunc
from trtops.comparator.data_loader import DataLoader as DataLoader
from trtops.comparator.data_loader import StreamingDataLoader as StreamingDataLoader
from trtops.comparator.metric_results import CompareResult as CompareResult
from trtops.comparator.metric_results import OutputCompareResult as OutputCompareResult
from trtops.comparator.metric_results import SimpleThreshold as SimpleThreshold
from trtops.comparator.metric_results import Threshold as Threshold
from trtops.comparator.metrics import OutputStatistics as OutputStatistics
from trtops.comparator.metrics import Quantile as Quantile
from trtops.comparator.metrics import statistics as statistics
from trtops.comparator.postprocess import BasePostprocessFunc as BasePostprocessFunc
from trtops.comparator.postprocess import PostprocessFunc as PostprocessFunc
from trtops.comparator.postprocess import TopKPostprocessFunc as TopKPostprocessFunc
from trtops.comparator.report import ComparisonReport as ComparisonReport
from trtops.comparator.report import OutputComparison as OutputComparison
from trtops.comparator.report import OutputTolerances as OutputTolerances
from trtops.comparator.report import Tolerances as Tolerances
from trtops.comparator.report import compare_outputs as compare_outputs
from trtops.comparator.results import IterationResult as IterationResult
from trtops.comparator.results import LazyArray as LazyArray
from trtops.comparator.results import RunResults as RunResults

def __getattr__(name: str) -> Any: ...  # what trtops.comparator.table makes
