"""What the ONNX tools use ONNX Runtime for: evaluating nodes, and inferring shapes with symbols.

No other module of this package imports ``onnxruntime``, and this one only when called.
"""

from __future__ import annotations

import contextlib
import functools
import os
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from trtops import errors
from trtops.backend.onnx import external, walk
from trtops.backend.onnx.hostile import bad_divisors, can_propagate_values, check_inlined_size
from trtops.backend.onnx.messages import ModelProto
from trtops.extras import require
from trtops.system.activity import Activity
from trtops.system.files import read_regular
from trtops.system.limits import bytes_of_files, limited_memory, memory_limit, time_limit, too_much, too_slow

if TYPE_CHECKING:
    import numpy as np
    import onnx

# Larger models are not suspect: a hostile one needs far fewer bytes.
_MAX_SUSPECT_BYTES = 1 << 22


def import_onnxruntime() -> Any:
    """Return ONNX Runtime, which then neither sends data on its use nor writes it to the home folder."""
    require("onnxruntime")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # noqa: TID251

    return onnxruntime


def load(model: onnx.ModelProto | str, label: str = "a part of the model", seconds: float | None = None) -> Any:
    """A session for a model or a model file, on the CPU, with one thread and without optimization.

    ``label`` the model is, for the message of a crash.
    """
    ort = import_onnxruntime()

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    limit_run_memory(options)
    try:
        if isinstance(model, str):
            source: Any = model
            own_bytes = bytes_of_files(model)
        else:
            source = model.SerializeToString()
            own_bytes = len(source)
        with limited_memory(4 * own_bytes), Activity(f"running {label}", seconds):  # loading copies weights
            return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as exc:  # ONNX Runtime's errors have no other common base class
        raise errors.InferenceError(f"ONNX Runtime cannot load this part of the model: {exc}") from exc


def evaluate(
    model: onnx.ModelProto | str,
    outputs: Sequence[str],
    feed: Mapping[str, Any],
    seconds: float | None = None,
    label: str = "a part of the model",
) -> list[np.ndarray[Any, Any]]:
    """Run a model once, in a session as :func:`load` makes it, within the time limit or as many ``seconds``.

    The model is a message below 2 GiB, or the path of a file, which may be larger.
    """
    session = load(model, label, seconds)
    ort = import_onnxruntime()
    options = ort.RunOptions()
    # The arena is shared by all sessions, so each run gives its memory back.
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    seconds = time_limit() if seconds is None else seconds

    def stop() -> None:
        options.terminate = True

    try:
        with Activity(f"running {label}", seconds, stop):
            results: list[np.ndarray[Any, Any]] = session.run(list(outputs), dict(feed), options)
    except Exception as exc:  # as above
        if options.terminate:
            message = f"{too_slow(f'Running {label}', seconds)} ONNX Runtime reported: {exc}"
            raise errors.InferenceError(message) from None
        if out_of_memory(exc):
            raise errors.InferenceError(too_much("Running this part of the model")) from None
        raise errors.InferenceError(f"ONNX Runtime cannot evaluate this part of the model: {exc}") from exc
    return results


def check_loads(source: bytes | str) -> None:
    """Load a suspect model, given as bytes or file, in a child process first."""
    # Some small models make ONNX Runtime propagate vectors until there is no memory left, which native code of other
    # threads may not survive.
    size = os.path.getsize(source) if isinstance(source, str) else len(source)
    if size > _MAX_SUSPECT_BYTES:
        return
    data = read_regular(source) if isinstance(source, str) else source
    try:
        proto: onnx.ModelProto = ModelProto.FromString(data)
    except (DecodeError, ValueError):
        return  # ONNX Runtime reports what is wrong
    check_inlined_size(proto)
    for _, message in bad_divisors(walk.nodes(proto)):
        raise errors.InferenceError(message)
    if not can_propagate_values(proto):
        _load_in_child(source)


@functools.lru_cache(maxsize=8)
def _load_in_child(source: bytes | str) -> None:
    from trtops.system.worker import Worker  # imports multiprocessing, which few models need

    with Worker(name="Loading the model") as worker:
        try:
            fits = worker.run(_fits_into_memory, source, timeout=time_limit())
        except errors.WorkerError as exc:
            raise errors.InferenceError(f"ONNX Runtime does not load the model: {exc}") from exc
    if not fits:
        raise errors.InferenceError(too_much("Loading the model in ONNX Runtime"))


def _fits_into_memory(source: bytes | str) -> bool:
    """Whether a model loads, or fails for another reason than memory; runs in a child."""
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC  # which folds constants
    options.log_severity_level = 4
    try:
        with limited_memory(4 * (bytes_of_files(source) if isinstance(source, str) else len(source))):
            ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as exc:  # ONNX Runtime's errors have no other common base class
        return not out_of_memory(exc)
    return True


def limit_run_memory(options: Any) -> None:
    """Let sessions with these options share an arena allocator limited to a third of ``TRTOPS_MEMORY_LIMIT``."""
    # The rest is for inputs, outputs, and the allocator's bookkeeping, which is nearly twice as large as the tensors if
    # a loop creates millions of small ones. Unlike a limit of the process, this fails only the allocation that is too
    # large, and native code of other threads keeps enough memory.
    _register_limited_arena(os.getpid())
    options.add_session_config_entry("session.use_env_allocators", "1")


@functools.cache
def _register_limited_arena(pid: int) -> None:
    ort = import_onnxruntime()
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    settings = ort.OrtArenaCfg({"max_mem": memory_limit() // 3})
    with contextlib.suppress(RuntimeError):  # a script has registered its own, or this process was forked
        ort.create_and_register_allocator(info, settings)


def out_of_memory(exc: Exception) -> bool:
    """Whether ONNX Runtime failed for lack of memory."""
    return isinstance(exc, MemoryError) or any(text in str(exc) for text in ("bad_alloc", "Available memory of"))


def infer_symbolic_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model with shapes from ONNX Runtime's symbolic inference, complete or not."""
    require("onnxruntime", "sympy", error=errors.InferenceError)
    import_onnxruntime()
    from onnxruntime.tools.symbolic_shape_infer import get_opset  # noqa: TID251

    if (get_opset(model) or 0) < 7:
        raise errors.InferenceError("Symbolic shape inference needs operator set 7 or later.")
    # Its own entry point, infer_shapes, writes a file to the working directory when shapes remain unknown.
    inference = _symbolic_inference()(2**31 - 1, True, False, 0)
    try:
        with limited_memory(), Activity("inferring symbolic shapes"):
            inference._preprocess(model)
            while inference.run_:
                inference._infer_impl()
            inference._update_output_from_vi()
    except Exception as exc:  # it raises errors of many types
        raise errors.InferenceError(f"Symbolic shape inference failed: {exc or type(exc).__name__}") from exc
    inferred: onnx.ModelProto = inference.out_mp_
    return inferred


@functools.cache
def _symbolic_inference() -> Any:
    """ONNX Runtime's class for models without large weights.

    It does not take n == 1 for false, nor an If for what one branch returns.
    """
    from onnxruntime.tools import symbolic_shape_infer as module  # noqa: TID251

    class Inference(module.SymbolicShapeInference):  # type: ignore[misc]
        def _try_get_value(self, node: onnx.NodeProto, index: int) -> Any:
            name = node.input[index] if index < len(node.input) else ""
            left_out = name in self.initializers_ and external.is_external(self.initializers_[name])
            return None if left_out else super()._try_get_value(node, index)

        def _infer_Constant(self, node: onnx.NodeProto) -> None:
            if not any(external.is_external(attribute.t) for attribute in node.attribute):
                super()._infer_Constant(node)

        def _infer_symbolic_compute_ops(self, node: onnx.NodeProto) -> None:
            super()._infer_symbolic_compute_ops(node)
            if node.op_type == "Equal" and node.output[0] in self.sympy_data_:
                sides = []
                for operand in self._get_int_or_float_values(node, True):
                    sides.append(operand if isinstance(operand, list) else [operand])
                if any(module.sympy.sympify(first - second).is_zero is None for first, second in zip(*sides)):
                    del self.sympy_data_[node.output[0]]

        def _fuse_tensor_type(self, node: onnx.NodeProto, out_idx: int, dst_type: Any, src_type: Any) -> None:
            kept_type, other_type = dst_type.tensor_type, src_type.tensor_type
            differ = len(kept_type.shape.dim) != len(other_type.shape.dim)
            super()._fuse_tensor_type(node, out_idx, dst_type, src_type)
            if differ or not other_type.HasField("shape"):
                kept_type.ClearField("shape")

    # It makes objects of the class that its module names, for the bodies of nodes.
    code = module.SymbolicShapeInference._onnx_infer_subgraph
    body = types.FunctionType(code.__code__, {**vars(module), "SymbolicShapeInference": Inference})
    body.__defaults__ = code.__defaults__
    Inference._onnx_infer_subgraph = body
    return Inference
