"""Inference with ONNX Runtime.

Everything that does not depend on the feed is worked out at activation: an inference adds a few microseconds to the
session's own.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from trtops import errors
from trtops.backend.onnxrt.loader import create_session
from trtops.backend.onnxrt.session import DEFAULT_PROVIDERS, ORT_ERRORS, session_options, why
from trtops.backend.runner import BaseRunner, Feed, ValueOrCallable
from trtops.metadata import DataType, FeedCheck, TensorMetadata, TensorSpec

if TYPE_CHECKING:
    from trtops.backend.onnx.model import Model

_RENAMED = {"float": "float32", "double": "float64", "string": "str"}

# numpy has no such types: arrays of ml_dtypes go in and out as OrtValues. The names are ONNX's.
_ORT_VALUE_TYPES = {
    DataType.BFLOAT16: "BFLOAT16",
    DataType.FLOAT8E4M3FN: "FLOAT8E4M3FN",
    DataType.FLOAT8E4M3FNUZ: "FLOAT8E4M3FNUZ",
    DataType.FLOAT8E5M2: "FLOAT8E5M2",
    DataType.FLOAT8E5M2FNUZ: "FLOAT8E5M2FNUZ",
}


class OnnxrtRunner(BaseRunner):
    """Runs inference in an ONNX Runtime session.

    Takes numpy arrays in host memory; bfloat16 and 8-bit floats as arrays of ``ml_dtypes``. Torch tensors are taken
    as well, and then the outputs are torch tensors in host memory. Outputs are new arrays at every inference, so they
    may be kept, and several threads may infer at once (:meth:`last_inference_time` is then any one of theirs).
    """

    _prefix = "onnxrt-runner"

    def __init__(self, sess: ValueOrCallable[ort.InferenceSession], name: str | None = None) -> None:
        """Wrap a session.

        Args:
            sess: The session, which stays the caller's, or a callable that makes one at each activation.
            name: The runner's name; counted up as ``onnxrt-runner-N0`` and so on if not given.
        """
        super().__init__(name, self._prefix)
        self._source = sess
        self._session: ort.InferenceSession | None = None

    def activate_impl(self) -> None:
        """Get the session and look at its inputs and outputs.

        Raises:
            UnsupportedFeatureError: If an input or output has a type that ONNX Runtime's Python package cannot pass.
        """
        session = self._source() if callable(self._source) else self._source
        self._inputs = TensorMetadata.of(_spec(node) for node in session.get_inputs())
        self._outputs = TensorMetadata.of(_spec(node) for node in session.get_outputs())
        self._output_names = list(self._outputs)
        specs = [*self._inputs.values(), *self._outputs.values()]
        self._needs_ort_values = any(spec.dtype in _ORT_VALUE_TYPES for spec in specs)
        for spec in specs:
            if spec.dtype in (DataType.INT4, DataType.FLOAT4):
                raise errors.UnsupportedFeatureError(
                    f"{self.name}: {spec} cannot be passed to ONNX Runtime from Python. Cast it to a wider type inside "
                    "the model."
                )
        # ONNX Runtime shows a tensor of unknown rank as it shows a scalar, so neither rank can be held against a feed.
        self._feed_check = FeedCheck(
            {s.name: s if s.shape else TensorSpec(s.name, s.dtype, None) for s in self._inputs.values()}
        )
        self._session = session

    def deactivate_impl(self) -> None:
        """Let go of the session."""
        self._session = None

    def get_input_metadata_impl(self) -> TensorMetadata:
        """The session's inputs. A tensor of unknown rank is shown as a scalar, as ONNX Runtime shows it."""
        return self._inputs

    def get_output_metadata(self) -> TensorMetadata:
        """The session's outputs: names, dtypes and shapes, in order; only while active."""
        return self._outputs

    def infer_impl(self, feed_dict: Feed) -> dict[str, Any]:
        """Run the session; torch tensors and types that numpy lacks take a longer way."""
        for array in feed_dict.values():
            if type(array) is not np.ndarray:
                return self._infer_other(feed_dict)
        if self._needs_ort_values:
            return self._infer_ort_values(feed_dict)
        assert self._session is not None
        feed = feed_dict if type(feed_dict) is dict else dict(feed_dict)
        start = time.perf_counter()
        try:
            outputs = self._session.run(self._output_names, feed)
        except ORT_ERRORS as exc:
            raise errors.InferenceError(f"{self.name}: ONNX Runtime failed: {why(exc)}") from exc
        self._inference_seconds = time.perf_counter() - start
        return dict(zip(self._output_names, outputs))

    def _infer_other(self, feed_dict: Feed) -> dict[str, Any]:
        """Infer on torch tensors, or on whatever else numpy turns into arrays."""
        has_torch = any(_is_torch(array) for array in feed_dict.values())
        outputs = self.infer_impl({name: _to_numpy(array) for name, array in feed_dict.items()})
        if not has_torch:
            return outputs
        import torch

        return {name: torch.from_numpy(array) for name, array in outputs.items()}

    def _infer_ort_values(self, feed_dict: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        assert self._session is not None
        values = {name: _to_ort_value(array, self._inputs[name].dtype) for name, array in feed_dict.items()}
        start = time.perf_counter()
        try:
            outputs = self._session.run_with_ort_values(self._output_names, values)
        except ORT_ERRORS as exc:
            raise errors.InferenceError(f"{self.name}: ONNX Runtime failed: {why(exc)}") from exc
        self._inference_seconds = time.perf_counter() - start
        return {name: _from_ort_value(value, self._outputs[name].dtype) for name, value in zip(self._outputs, outputs)}


class ReferenceRunner(OnnxrtRunner):
    """Runs a model as it is, on the CPU with every graph optimization off: for golden outputs."""

    _prefix = "onnxrt-reference"

    def __init__(self, model: Model, name: str | None = None) -> None:
        """Wrap a model, which is read at activation.

        Args:
            model: The model.
            name: The runner's name; counted up as ``onnxrt-reference-N0`` and so on if not given.
        """
        super().__init__(lambda: _reference_session(model), name)


def _reference_session(model: Model) -> ort.InferenceSession:
    from trtops.backend.onnx.save import PROTOBUF_LIMIT, model_bytes

    options = session_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = model.proto()
    if model_bytes(proto) >= PROTOBUF_LIMIT and model.path is not None:
        return create_session(model.path, options, DEFAULT_PROVIDERS)
    return create_session(proto, options, DEFAULT_PROVIDERS)


def _spec(node: ort.NodeArg) -> TensorSpec:
    """A session's input or output; what is no tensor has neither dtype nor shape."""
    if not node.type.startswith("tensor("):
        return TensorSpec(node.name)
    element = node.type.removeprefix("tensor(").removesuffix(")")
    dtype = DataType.__members__.get(element.upper()) or _data_type(_RENAMED.get(element, element))
    return TensorSpec(node.name, dtype, tuple(node.shape))


def _data_type(name: str) -> DataType | None:
    return next((dtype for dtype in DataType if dtype.value == name), None)


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"


def _to_numpy(array: Any) -> np.ndarray[Any, Any]:
    return array.detach().cpu().numpy() if _is_torch(array) else np.asarray(array)


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
