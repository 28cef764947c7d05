"""The effect of rounding on a model, measured by moving its weights and inputs by their rounding error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from trtops.backend.base import Feed
from trtops.backend.engines import reference_runner
from trtops.backend.onnx.model import Model, is_large
from trtops.comparator.results import RunResults
from trtops.spec import Precision

UNITS: dict[Precision, float] = {"fp32": 2.0**-23, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4, "int8": 1 / 254}
"""Rounding errors: relative to the number, for INT8 relative to the largest of its tensor.

Half a step; for FP32 a whole one, because FP32 weights cannot be moved by less.
"""


def moved_reference(model: Model, feeds: Sequence[Feed], precision: Precision, *, seed: int = 1) -> RunResults | None:
    """The reference's outputs with weights and inputs moved at random by up to one rounding unit of a precision.

    None for models that are too large to be changed in memory.
    """
    from trtops.ops.evaluation.check import collect

    if is_large(model.structure()):
        return None
    proto = model.proto()
    random = np.random.default_rng(seed)
    for tensor in proto.graph.initializer:
        if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE):
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(_moved_array(array, precision, random), tensor.name))
    inputs = [
        {name: _moved_array(np.asarray(array), precision, random) for name, array in feed.items()} for feed in feeds
    ]
    with reference_runner(Model.from_proto(proto, model.name)) as runner:
        return collect(runner, inputs)


def _moved_array(array: npt.NDArray[Any], precision: Precision, random: np.random.Generator) -> npt.NDArray[Any]:
    """A floating-point array moved; other arrays are unchanged."""
    if array.dtype.kind != "f" or not array.size:
        return array
    unit = UNITS[precision]
    step = unit * float(np.max(np.abs(array), initial=0.0)) if precision == "int8" else unit * np.abs(array)
    return (array + random.uniform(-1, 1, array.shape) * step).astype(array.dtype)


def outputs_by_iteration(results: RunResults) -> list[Mapping[str, Any]]:
    """The outputs of the first runner, iteration by iteration."""
    return list(results[0][1])


def all_numbers(results: RunResults, name: str) -> npt.NDArray[np.float64] | None:
    """All numbers of an output; None if an iteration lacks it, or it does not hold numbers."""
    run = outputs_by_iteration(results)
    if any(name not in iteration for iteration in run):
        return None
    arrays = [np.asarray(iteration[name]) for iteration in run]
    if any(array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16" for array in arrays):
        return None
    return np.concatenate([array.astype(np.float64).ravel() for array in arrays])


def root_mean_square(difference: npt.NDArray[np.float64]) -> float:
    """Root mean square; infinite if an element is NaN or infinite, 0 without elements."""
    if not difference.size:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        value = float(np.sqrt(np.mean(np.square(difference))))
    return value if math.isfinite(value) else math.inf
