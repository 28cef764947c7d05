from trtops.comparator.report import ComparisonReport as ComparisonReport
from trtops.comparator.report import Tolerances as Tolerances
from trtops.comparator.report import compare_outputs as compare_outputs
from trtops.errors import TrtopsError as TrtopsError
from trtops.ops import *
from trtops.ops.gate.op import gate as gate
from trtops.ops.stored_runs import runs as runs
from trtops.spec import BuildConfig as BuildConfig
from trtops.spec import OnnxRuntimeOptions as OnnxRuntimeOptions
from trtops.spec import OptimizationProfile as OptimizationProfile
from trtops.spec import TensorRTOptions as TensorRTOptions
from trtops.tracking.memory import MemoryTracker as MemoryTracker
from trtops.tracking.store import default_tracker as default_tracker

__version__: str
