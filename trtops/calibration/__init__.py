"""Calibration: the ranges of a model's tensors that an INT8 engine needs, and how they are chosen and kept.

Values only: :mod:`~trtops.calibration.cache` is the model of a calibration cache, in our JSON and in TensorRT's text;
:mod:`~trtops.calibration.histogram` counts a tensor's values in bounded memory and chooses its range. Nothing here knows a
back end: :mod:`trtops.backend.onnxrt.calibration` collects, :mod:`trtops.backend.onnx.quantize` writes into models.
"""

from trtops.calibration.cache import CalibrationCache as CalibrationCache
from trtops.calibration.cache import TensorRange as TensorRange
from trtops.calibration.cache import fit as fit
from trtops.calibration.compare import CacheDiff as CacheDiff
from trtops.calibration.compare import diff as diff
