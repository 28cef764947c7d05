"""Runs a session on numpy arrays, torch tensors, and types that numpy lacks."""

import ctypes
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort

from trtops import errors
from trtops.backend.onnx.with_onnxruntime import out_of_memory
from trtops.backend.onnxrt.session import ORT_ERRORS, why
from trtops.backend.runner import Feed
from trtops.metadata import DataType, TensorMetadata
from trtops.system.limits import time_limit, too_much, too_slow
from trtops.torch_tensors import from_torch, is_torch, to_torch

# Arrays of ml_dtypes are passed as OrtValues, under ONNX's names of their types.
_ORT_VALUE_TYPES = {
    DataType.BFLOAT16: "BFLOAT16",
    DataType.FLOAT8E4M3FN: "FLOAT8E4M3FN",
    DataType.FLOAT8E4M3FNUZ: "FLOAT8E4M3FNUZ",
    DataType.FLOAT8E5M2: "FLOAT8E5M2",
    DataType.FLOAT8E5M2FNUZ: "FLOAT8E5M2FNUZ",
}


class Inference:
    """Runs one session; everything that does not depend on the feed is prepared once. Thread-safe."""

    def __init__(
        self, session: ort.InferenceSession, inputs: TensorMetadata, outputs: TensorMetadata, name: str
    ) -> None:
        """Wrap a session, given its inputs, the outputs to compute, and a name for error messages."""
        self._session = session
        self._inputs = inputs
        self._outputs = outputs
        self._name = name
        self._output_names = list(outputs)
        self.clock = time.perf_counter
        # A failing node is an exception, whose text ONNX Runtime would also print in red.
        self._options = ort.RunOptions()
        self._options.log_severity_level = 4
        self._structured = any(not node.type.startswith(("tensor", "optional")) for node in session.get_outputs())
        self._needs_ort_values = any(spec.dtype in _ORT_VALUE_TYPES for spec in (*inputs.values(), *outputs.values()))

    def __call__(self, feed: Feed) -> tuple[dict[str, Any], float]:
        """Run the session once, and return the outputs by name and the seconds that ONNX Runtime took.

        If an input is a torch tensor, the outputs are torch tensors in host memory.
        """
        for array in feed.values():
            if type(array) is not np.ndarray:
                return self._run_converted(feed)
        feed = feed if type(feed) is dict else dict(feed)
        try:
            if self._needs_ort_values:
                values = _to_ort_values(feed, self._inputs)
                start = self.clock()
                made = self._session.run_with_ort_values(self._output_names, values, self._options)
                seconds = self.clock() - start
                return {n: _from_ort_value(v, self._outputs[n].dtype) for n, v in zip(self._outputs, made)}, seconds
            start = self.clock()
            outputs = self._session.run(self._output_names, feed, self._options)
            seconds = self.clock() - start
        except ORT_ERRORS as exc:
            if self._options.terminate:
                self._options.terminate = False
                reason = f"{too_slow(f'{self._name}: an inference', time_limit())} ONNX Runtime reported: {why(exc)}"
                raise errors.InferenceError(reason) from exc
            if out_of_memory(exc):
                reason = f"{too_much(f'{self._name}: the tensors of its nodes')} ONNX Runtime reported: {why(exc)}"
                raise errors.InferenceError(reason) from exc
            raise errors.InferenceError(f"{self._name}: ONNX Runtime failed: {why(exc)}") from exc
        found = dict(zip(self._output_names, outputs))
        if self._structured:
            return {key: array for name, value in found.items() for key, array in _arrays_of(name, value)}, seconds
        return found, seconds

    def stop(self) -> None:
        """Let the inferences that are running fail at their next node."""
        self._options.terminate = True

    def _run_converted(self, feed: Feed) -> tuple[dict[str, Any], float]:
        """Run on torch tensors, or on anything that numpy converts to arrays."""
        arrays = {name: from_torch(array) if is_torch(array) else np.asarray(array) for name, array in feed.items()}
        outputs, seconds = self(arrays)
        if any(is_torch(array) for array in feed.values()):
            outputs = {name: to_torch(array) for name, array in outputs.items()}
        return outputs, seconds


def _arrays_of(name: str, value: Any) -> list[tuple[str, Any]]:
    """A sequence or map as named arrays: one if its items can be stacked, otherwise one per item (``name/0`` ...).

    A map gives its values sorted by key. A sequence of maps (ZipMap's probabilities of a classifier) gives a row each.
    """
    if isinstance(value, Mapping):
        return [(name, np.array([value[key] for key in sorted(value)]))]
    if not isinstance(value, list):
        return [(name, value)]
    items = [_arrays_of(name, item)[0][1] if isinstance(item, Mapping) else np.asarray(item) for item in value]
    if items and len({(item.shape, item.dtype) for item in items}) == 1:
        return [(name, np.stack(items))]
    return [(f"{name}/{place}", item) for place, item in enumerate(items)]


def _to_ort_values(feed: Mapping[str, np.ndarray[Any, Any]], inputs: TensorMetadata) -> dict[str, ort.OrtValue]:
    # A slow import, needed for such types only.
    from onnx import TensorProto

    values = {}
    for name, array in feed.items():
        dtype = inputs[name].dtype
        kind = None if dtype is None else _ORT_VALUE_TYPES.get(dtype)
        if kind is None:
            values[name] = ort.OrtValue.ortvalue_from_numpy(array)
        else:
            element = TensorProto.DataType.Value(kind)
            array = np.ascontiguousarray(array)
            values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, element)
    return values


def _from_ort_value(value: ort.OrtValue, dtype: DataType | None) -> Any:
    """An output as an array; of a type that numpy lacks, a copy of the value's bytes in host memory."""
    if dtype not in _ORT_VALUE_TYPES:
        return value.numpy()
    array = np.empty(value.shape(), dtype.numpy())
    ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array
