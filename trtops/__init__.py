"""trtops: build, evaluate and explain TensorRT and ONNX Runtime engines, and record every build in MLflow.

Begin with :func:`convert`: it builds an engine from an ONNX file, compares it with the model and logs a run. The names
in ``__init__.pyi``, with all of :mod:`trtops.ops`, are imported on first use, so that ``import trtops`` loads no back
end, no MLflow and no Prefect. All flows are in :mod:`trtops.flows`; loaders, runners and comparisons under Polygraphy's
names are in :mod:`trtops.backend.onnx`, :mod:`trtops.backend.onnxrt`, :mod:`trtops.backend.trt` and
:mod:`trtops.comparator`.
"""

from trtops.lazy import exports

__version__ = "0.1.0"

__getattr__, __dir__ = exports(__name__)
