"""Calibration: the ranges of a model's tensors that an INT8 engine needs.

:mod:`~trtops.calibration.cache` is the calibration cache, in our JSON and in TensorRT's text;
:mod:`~trtops.calibration.histogram` counts a tensor's values in bounded memory and chooses its range. Ranges are
collected by :mod:`trtops.backend.onnxrt.calibration` and written into models by :mod:`trtops.backend.onnx.quantize`.
"""

from trtops.calibration.cache import CalibrationCache as CalibrationCache
from trtops.calibration.cache import TensorRange as TensorRange
from trtops.calibration.cache import fit as fit
