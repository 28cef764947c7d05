"""One session as a function of arrays: numpy arrays, torch tensors, and types that numpy lacks.

Apart from the runner, since it needs numpy and ONNX Runtime, and making a runner does not.
"""

from __future__ import annotations

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
from trtops.limits import too_much
from trtops.metadata import DataType, TensorMetadata
from trtops.torch_tensors import from_torch, is_torch, to_torch

# numpy has no such types: arrays of ml_dtypes go in and out as OrtValues. The names are ONNX's.
_ORT_VALUE_TYPES = {
    DataType.BFLOAT16: "BFLOAT16",
    DataType.FLOAT8E4M3FN: "FLOAT8E4M3FN",
    DataType.FLOAT8E4M3FNUZ: "FLOAT8E4M3FNUZ",
    DataType.FLOAT8E5M2: "FLOAT8E5M2",
    DataType.FLOAT8E5M2FNUZ: "FLOAT8E5M2FNUZ",
}


class Inference:
    """Runs one session. What does not depend on the feed is worked out once; several threads may call it at once."""

    def __init__(
        self, session: ort.InferenceSession, inputs: TensorMetadata, outputs: TensorMetadata, name: str
    ) -> None:
        """Wrap a session.

        Args:
            session: The session.
            inputs: Its inputs.
            outputs: Its outputs.
            name: Whom error messages name.
        """
        self._session = session
        self._inputs = inputs
        self._outputs = outputs
        self._name = name
        self._output_names = list(outputs)
        self._structured = [spec.name for spec in outputs.values() if spec.dtype is None and spec.shape is None]
        self._needs_ort_values = any(spec.dtype in _ORT_VALUE_TYPES for spec in (*inputs.values(), *outputs.values()))

    def __call__(self, feed: Feed) -> tuple[dict[str, Any], float]:
        """Run the session once.

        Args:
            feed: Arrays or torch tensors by input name. If one is a torch tensor, the outputs are torch tensors in
                host memory.

        Returns:
            The outputs by name, new at every call, and the seconds that ONNX Runtime took.

        Raises:
            InferenceError: If ONNX Runtime fails.
        """
        for array in feed.values():
            if type(array) is not np.ndarray:
                return self._run_other(feed)
        if self._needs_ort_values:
            return self._run_ort_values(feed)
        feed = feed if type(feed) is dict else dict(feed)
        start = time.perf_counter()
        try:
            outputs = self._session.run(self._output_names, feed)
        except ORT_ERRORS as exc:
            raise self._failure(exc) from exc
        seconds = time.perf_counter() - start
        found = dict(zip(self._output_names, outputs))
        return (self._with_arrays(found) if self._structured else found), seconds

    def _with_arrays(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Outputs with arrays in place of sequences and maps."""
        arrays: dict[str, Any] = {}
        for name, value in outputs.items():
            arrays.update(_arrays_of(name, value))
        return arrays

    def _run_other(self, feed: Feed) -> tuple[dict[str, Any], float]:
        """Run on torch tensors, or on whatever else numpy turns into arrays."""
        arrays = {name: from_torch(array) if is_torch(array) else np.asarray(array) for name, array in feed.items()}
        outputs, seconds = self(arrays)
        if any(is_torch(array) for array in feed.values()):
            outputs = {name: to_torch(array) for name, array in outputs.items()}
        return outputs, seconds

    def _run_ort_values(self, feed: Mapping[str, np.ndarray[Any, Any]]) -> tuple[dict[str, Any], float]:
        values = {name: _to_ort_value(array, self._inputs[name].dtype) for name, array in feed.items()}
        start = time.perf_counter()
        try:
            outputs = self._session.run_with_ort_values(self._output_names, values)
        except ORT_ERRORS as exc:
            raise self._failure(exc) from exc
        seconds = time.perf_counter() - start
        return {n: _from_ort_value(value, self._outputs[n].dtype) for n, value in zip(self._outputs, outputs)}, seconds

    def _failure(self, exc: Exception) -> errors.InferenceError:
        if out_of_memory(exc):
            return errors.InferenceError(
                f"{too_much(f'{self._name}: what its nodes make')} ONNX Runtime said: {why(exc)}"
            )
        return errors.InferenceError(f"{self._name}: ONNX Runtime failed: {why(exc)}")


def run_session(
    session: ort.InferenceSession, outputs: list[str], feed: Mapping[str, np.ndarray[Any, Any]], inputs: TensorMetadata
) -> list[Any]:
    """Outputs, of types that numpy has, of a session whose inputs may be of others; raises what ONNX Runtime does."""
    if not any(spec.dtype in _ORT_VALUE_TYPES for spec in inputs.values()):
        found: list[Any] = session.run(outputs, feed)
        return found
    values = {name: _to_ort_value(array, inputs[name].dtype) for name, array in feed.items()}
    return [value.numpy() for value in session.run_with_ort_values(outputs, values)]


def _arrays_of(name: str, value: Any) -> dict[str, Any]:
    """A sequence or map as arrays: one where its items can be stacked, else one for each, named after its place.

    A map gives its values by sorted keys, a sequence of maps (what ZipMap makes of a classifier's probabilities) a row for
    each.
    """
    if isinstance(value, Mapping):
        return {name: np.array([value[key] for key in sorted(value)])}
    if not isinstance(value, list):
        return {name: value}
    items = [_arrays_of(name, item)[name] if isinstance(item, Mapping) else np.asarray(item) for item in value]
    if items and len({(item.shape, item.dtype) for item in items}) == 1:
        return {name: np.stack(items)}
    return {f"{name}/{place}": item for place, item in enumerate(items)}


def _to_ort_value(array: np.ndarray[Any, Any], dtype: DataType | None) -> ort.OrtValue:
    kind = None if dtype is None else _ORT_VALUE_TYPES.get(dtype)
    if kind is None:
        return ort.OrtValue.ortvalue_from_numpy(array)
    import onnx  # takes a while to import, and is needed for such types only

    element = onnx.TensorProto.DataType.Value(kind)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), element)


def _from_ort_value(value: ort.OrtValue, dtype: DataType | None) -> Any:
    """An output as an array; of a type that numpy lacks, a copy of the value's bytes in host memory."""
    if dtype not in _ORT_VALUE_TYPES:
        return value.numpy()
    array = np.empty(value.shape(), dtype.numpy())
    ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array
