from trtops import config as config
from trtops.comparator.report import ComparisonReport as ComparisonReport
from trtops.comparator.report import Tolerances as Tolerances
from trtops.comparator.report import compare_outputs as compare_outputs
from trtops.errors import TrtopsError as TrtopsError
from trtops.ops import *
from trtops.ops.stored_runs import runs as runs
from trtops.spec import BuildConfig as BuildConfig
from trtops.spec import OnnxRuntimeOptions as OnnxRuntimeOptions
from trtops.spec import OptimizationProfile as OptimizationProfile
from trtops.spec import TensorRTOptions as TensorRTOptions
from trtops.tracking.memory import MemoryTracker as MemoryTracker
from trtops.tracking.store import default_tracker as default_tracker
from trtops.verbs import accuracy as accuracy
from trtops.verbs import audit as audit  # type: ignore[assignment]
from trtops.verbs import bisect as bisect
from trtops.verbs import build_list as build_list
from trtops.verbs import bundle as bundle
from trtops.verbs import calibrate as calibrate
from trtops.verbs import choose as choose
from trtops.verbs import choose_all as choose_all
from trtops.verbs import compare as compare
from trtops.verbs import convert as convert
from trtops.verbs import debug_build as debug_build
from trtops.verbs import diff_tactics as diff_tactics  # type: ignore[assignment]
from trtops.verbs import evaluate as evaluate
from trtops.verbs import export as export
from trtops.verbs import gate as gate
from trtops.verbs import gate_all as gate_all
from trtops.verbs import inspect_engines as inspect_engines
from trtops.verbs import precision as precision
from trtops.verbs import promote as promote
from trtops.verbs import prove as prove
from trtops.verbs import reduce as reduce
from trtops.verbs import sensitivity as sensitivity
from trtops.verbs import triage as triage

__version__: str
