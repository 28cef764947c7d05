"""Runs a session on numpy arrays, torch tensors, and types unknown to numpy.

On a GPU, inputs and outputs are bound to device memory: the measured time has no copies to or from the host, and ends
when the device has finished.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Mapping
from itertools import chain, starmap
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.onnx.with_onnxruntime import out_of_memory
from trtops.backend.onnxrt.library import ort
from trtops.backend.onnxrt.session import CUDA, ORT_ERRORS, why
from trtops.backend.runner import Feed
from trtops.metadata import DataType, TensorMetadata, TensorSpec
from trtops.spec import GPU_PROVIDERS
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
    """Runs one session; everything independent of the feed is prepared once. Thread-safe."""

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
        self._needs_ort_values = any(spec.dtype in _ORT_VALUE_TYPES for spec in (*inputs.values(), *outputs.values()))
        self._structured, self._is_bound = False, session.get_providers()[0] in GPU_PROVIDERS
        for node in session.get_outputs():
            self._structured |= not node.type.startswith(("tensor", "optional"))
        for node in (*session.get_inputs(), *session.get_outputs()):
            self._is_bound &= node.type.startswith("tensor(") and node.type != "tensor(string)"
        self._warm: set[object] = set()  # shapes that were run before
        self._bound: tuple[ort.IOBinding, ort.RunOptions] | None = None  # of the last inference in device memory
        self._lock = threading.Lock()
        # CUDA graphs by shapes: binding, run options, and the inputs and outputs in device memory that stay in place.
        self._graphs: dict[object, tuple[Any, Any, dict[str, ort.OrtValue], list[ort.OrtValue]]] | None = None
        if session.get_provider_options().get(CUDA, {}).get("enable_cuda_graph") == "1":
            self._options.add_run_config_entry("gpu_graph_id", "-1")  # no graph, unless another number is given
            # An input that the session wants in host memory would be copied once, and not at each inference.
            if not self._needs_ort_values and all(memory.name == "Cuda" for memory in session.get_input_memory_infos()):
                self._graphs = {}

    def __call__(self, feed: Feed) -> tuple[dict[str, Any], float]:
        """Run the session once, and return the outputs by name and ONNX Runtime's seconds.

        If an input is a torch tensor, the outputs are torch tensors in host memory. They are in device memory, without
        a copy, if an input is there and the session runs on that GPU without a graph.
        """
        for array in feed.values():
            if type(array) is not np.ndarray:
                return self._run_converted(feed)
        return self._run(feed)

    def _run(self, feed: Feed) -> tuple[dict[str, Any], float]:
        feed = feed if type(feed) is dict else dict(feed)
        try:
            if self._is_bound:
                return self._run_graph(feed) if self._graphs is not None else self._run_bound(feed)
            if self._needs_ort_values:
                values = _to_ort_values(feed, self._inputs)
                start = self.clock()
                ort_values = self._session.run_with_ort_values(self._output_names, values, self._options)
                seconds = self.clock() - start
                return dict(zip(self._outputs, map(_from_ort_value, ort_values, self._outputs.values()))), seconds
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
        by_name = dict(zip(self._output_names, outputs))
        if self._structured:
            return dict(chain.from_iterable(starmap(_arrays_of, by_name.items()))), seconds
        return by_name, seconds

    def stop(self) -> None:
        """Let running inferences fail at their next node."""
        self._options.terminate = True

    def _run_bound(self, feed: Feed) -> tuple[dict[str, Any], float]:
        """Run with inputs and outputs in device memory."""
        on_device = any(map(is_torch, feed.values()))
        binding = self._session.io_binding()
        for name, value in _to_ort_values(feed, self._inputs).items():
            binding.bind_ortvalue_input(name, value)  # copies it to the device, unless it is there
        for name, spec in self._outputs.items():
            binding.bind_output(name, "cpu" if spec.dtype in _ORT_VALUE_TYPES else "cuda")
        # The first inference at a shape loads kernels and searches algorithms. Only the second is measured.
        shapes = _shapes(feed)
        if shapes not in self._warm:
            self._run_binding(binding, self._options)
            self._warm.add(shapes)
        seconds = self._run_binding(binding, self._options)
        values = binding.get_outputs()
        if not on_device:
            return dict(zip(self._outputs, map(_from_ort_value, values, self._outputs.values()))), seconds
        import torch

        return dict(zip(self._outputs, map(torch.from_dlpack, values))), seconds

    def _run_graph(self, feed: Feed) -> tuple[dict[str, Any], float]:
        """Replay the CUDA graph for the feed's shapes, captured at their first inference."""
        assert self._graphs is not None
        with self._lock:
            if (shapes := _shapes(feed)) not in self._graphs:
                sample_outputs, _ = self._run_bound(feed)
                inputs = {name: ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0) for name, array in feed.items()}
                outputs = []
                for name in self._outputs:
                    shape, dtype = sample_outputs[name].shape, sample_outputs[name].dtype
                    outputs.append(ort.OrtValue.ortvalue_from_shape_and_type(shape, dtype, "cuda", 0))
                binding, options = self._session.io_binding(), ort.RunOptions()
                options.log_severity_level = 4
                options.add_run_config_entry("gpu_graph_id", str(len(self._graphs) + 1))
                for name, value in inputs.items():
                    binding.bind_ortvalue_input(name, value)
                for name, value in zip(self._outputs, outputs):
                    binding.bind_ortvalue_output(name, value)
                self._run_binding(binding, options)
                self._graphs[shapes] = binding, options, inputs, outputs
            binding, options, inputs, outputs = self._graphs[shapes]
            for name, array in feed.items():
                inputs[name].update_inplace(np.asarray(array, order="C"))
            seconds = self._run_binding(binding, options)
            return dict(zip(self._outputs, map(ort.OrtValue.numpy, outputs))), seconds

    def _run_binding(self, binding: ort.IOBinding, options: ort.RunOptions) -> float:
        """Run once, and return the seconds until the device has finished."""
        self._bound = binding, options
        binding.synchronize_inputs()
        start = self.clock()
        self._session.run_with_iobinding(binding, options)
        binding.synchronize_outputs()
        return self.clock() - start

    def repeat(self) -> float | None:
        """Run the last inference again, with its inputs and outputs in device memory, and return the seconds.

        None if the session does not run on a GPU, or nothing was run. Outputs that the caller got are unchanged.
        """
        return None if self._bound is None else self._run_binding(*self._bound)

    def _run_converted(self, feed: Feed) -> tuple[dict[str, Any], float]:
        """Run on torch tensors, or on anything convertible to numpy arrays."""
        arrays: dict[str, Any] = dict(feed)
        for name, array in arrays.items():
            if not is_torch(array):
                arrays[name] = np.asarray(array)
            elif not (array.is_cuda and self._is_bound and self._graphs is None):
                arrays[name] = from_torch(array)
        outputs, seconds = self._run(arrays)
        if any(map(is_torch, feed.values())):
            outputs = {name: array if is_torch(array) else to_torch(array) for name, array in outputs.items()}
        return outputs, seconds


def _shapes(feed: Feed) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(array.shape)) for name, array in feed.items())


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
    return [(f"{name}/{index}", item) for index, item in enumerate(items)]


def _to_ort_values(feed: Mapping[str, Any], inputs: TensorMetadata) -> dict[str, ort.OrtValue]:
    # A slow import, needed for such types only.
    from onnx import TensorProto

    values = {}
    for name, array in feed.items():
        if is_torch(array):
            tensor = array.detach().contiguous()
            sys.modules["torch"].cuda.current_stream(tensor.device).synchronize()  # it may not be computed yet
            if hasattr(ort.OrtValue, "from_dlpack"):
                values[name] = ort.OrtValue.from_dlpack(tensor)
            else:  # releases up to 1.23
                values[name] = ort.OrtValue.ortvalue_from_numpy(tensor.cpu().numpy())
            continue
        dtype = inputs[name].dtype
        kind = None if dtype is None else _ORT_VALUE_TYPES.get(dtype)
        if kind is None:
            values[name] = ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
        else:
            element = TensorProto.DataType.Value(kind)
            array = np.asarray(array, order="C")
            values[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, element)
    return values


def _from_ort_value(value: ort.OrtValue, spec: TensorSpec) -> Any:
    """Return an output as an array; for a type unknown to numpy, a copy of its bytes in host memory."""
    if spec.dtype not in _ORT_VALUE_TYPES:
        return value.numpy()
    array = np.empty(value.shape(), spec.dtype.numpy())
    ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array
