"""Calibration: what an INT8 engine has to know of a model's tensors, and how it is found and kept.

Values only: :mod:`~trtops.calibration.cache` is the one model of a calibration cache, in our JSON and in TensorRT's text;
:mod:`~trtops.calibration.histogram` sums up a tensor in bounded memory and chooses its range. Nothing here knows a back
end; :mod:`trtops.backend.onnxrt.calibration` does the collecting, :mod:`trtops.backend.onnx.quantize` the writing into
models.
"""

from trtops.calibration.cache import CalibrationCache as CalibrationCache
from trtops.calibration.cache import TensorRange as TensorRange
from trtops.calibration.cache import fit as fit
from trtops.calibration.compare import CacheDiff as CacheDiff
from trtops.calibration.compare import diff as diff
