"""Calibration: the ranges of a model's tensors for an INT8 engine.

:mod:`trtops.backend.onnxrt.calibration` collects them, :mod:`trtops.backend.onnx.quantize` writes them into models.
"""

from trtops.calibration.cache import CalibrationCache as CalibrationCache
from trtops.calibration.cache import TensorRange as TensorRange
from trtops.calibration.cache import fit as fit
