"""trtops: build, evaluate and explain TensorRT and ONNX Runtime engines, and record every build in MLflow.

Begin with :func:`convert`: it builds an engine from an ONNX file, compares it with the model and logs a run. The names
below, with all of :mod:`trtops.ops`, are imported on first use, so that ``import trtops`` loads no back end, no MLflow
and no Prefect. All flows are in :mod:`trtops.flows`; loaders, runners and comparisons under Polygraphy's names are in
:mod:`trtops.backend.onnx`, :mod:`trtops.backend.onnxrt`, :mod:`trtops.backend.trt` and :mod:`trtops.comparator`.
"""

import os
import sys

# `python -m trtops.cli` and others search the working folder first, where a downloaded model may come with its own
# `onnxruntime.py`. Packages next to this one are found without it. (While packages are imported, argv[0] is `-m`.)
if (
    sys.argv[:1] == ["-m"]
    and sys.orig_argv[-len(sys.argv)].removeprefix("-m").partition(".")[0] in ("trtops", "flows")
    and sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
):
    del sys.path[0]

# ONNX Runtime otherwise writes files about its use into the home and temporary folders, and sends them.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from typing import TYPE_CHECKING

from trtops.lazy import exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    # Build an engine, and evaluate it
    from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs
    from trtops.ops import *
    from trtops.ops.gate.op import gate

    # Describe a build
    from trtops.spec import BuildConfig, OnnxRuntimeOptions, OptimizationProfile, TensorRTOptions

    # Store runs
    from trtops.ops.stored_runs import runs
    from trtops.tracking.memory import MemoryTracker
    from trtops.tracking.store import default_tracker

    # Errors
    from trtops.errors import TrtopsError

__getattr__, __dir__ = exports(__name__)
