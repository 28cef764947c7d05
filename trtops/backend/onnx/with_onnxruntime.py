"""What the ONNX tools ask of ONNX Runtime: constants evaluated, shapes inferred with symbols, kernels looked up.

The one module of this package that imports ``onnxruntime``, and only when called.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from trtops import errors
from trtops.backend.onnx.expansion import check_expansion
from trtops.backend.onnx.following import may_propagate
from trtops.backend.onnx.messages import ModelProto
from trtops.limits import bytes_of_files, limited_memory, memory_limit, too_much

if TYPE_CHECKING:
    import numpy as np
    import onnx

LONGEST_SECONDS = 300.0
"""How long one inference may take."""

_LARGEST_SUSPECT = 1 << 22
"""Bytes of a model above which it is taken to be what it says: nothing that asks for much needs more."""


def load(model: onnx.ModelProto | str) -> Any:
    """A session for a model, or a model file, on the CPU, with one thread and without optimizing it.

    Raises:
        InferenceError: If the model is invalid, ONNX Runtime has no kernel for a node, or it would take too much memory.
    """
    import onnxruntime as ort  # noqa: TID251

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    limit_run_memory(options)
    try:
        source = model if isinstance(model, str) else model.SerializeToString()
        with limited_memory(_weight_bytes(model)):
            return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as exc:  # ONNX Runtime's errors share no base class but this
        raise errors.InferenceError(f"ONNX Runtime cannot load this part of the model: {exc}") from exc


def evaluate(
    model: onnx.ModelProto | str, outputs: Sequence[str], feed: Mapping[str, Any]
) -> list[np.ndarray[Any, Any]]:
    """Run a model once, in a session as :func:`load` makes it.

    Args:
        model: The model, below 2 GiB, or the path of its file, which may be larger.
        outputs: Names of the outputs wanted.
        feed: Arrays by input name.

    Returns:
        The outputs in the order asked for.

    Raises:
        InferenceError: If ONNX Runtime has no kernel for a node, fails, or does not come to an end: a Loop may run for
            ever.
    """
    import onnxruntime as ort  # noqa: TID251

    session = load(model)
    options = ort.RunOptions()
    options.add_run_config_entry(
        "memory.enable_memory_arena_shrinkage", "cpu:0"
    )  # it is shared, and other runs are few
    timer = threading.Timer(LONGEST_SECONDS, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        results: list[np.ndarray[Any, Any]] = session.run(list(outputs), dict(feed), options)
    except Exception as exc:  # as above
        if options.terminate:
            message = f"ONNX Runtime did not come to an end within {LONGEST_SECONDS:g} s while running this part of the model."
            raise errors.InferenceError(message) from None
        if out_of_memory(exc):
            raise errors.InferenceError(too_much("Running this part of the model")) from None
        raise errors.InferenceError(f"ONNX Runtime cannot evaluate this part of the model: {exc}") from exc
    finally:
        timer.cancel()
    return results


def check_loads(source: bytes | str) -> None:
    """Load a model in a child first if ONNX Runtime would follow vectors in it that outgrow all.

    That takes the memory bit by bit until there is none, which native code of other threads may not survive.

    Args:
        source: A model's bytes, or its file.

    Raises:
        InferenceError: If it takes too much memory, or takes the child down.
        InvalidModelError: If its functions come to too many nodes.
    """
    size = os.path.getsize(source) if isinstance(source, str) else len(source)
    if size > _LARGEST_SUSPECT:
        return
    proto = _parsed(source)
    if proto is None:
        return  # ONNX Runtime will say what it is
    check_expansion(proto)
    if not may_propagate(proto):
        _load_apart(source)


def _parsed(source: bytes | str) -> onnx.ModelProto | None:
    data = Path(source).read_bytes() if isinstance(source, str) else source
    try:
        model: onnx.ModelProto = ModelProto.FromString(data)
    except (DecodeError, ValueError):
        return None
    return model


@functools.lru_cache(maxsize=8)
def _load_apart(source: bytes | str) -> None:
    """Load a model in a child of its own."""
    from trtops.worker import Worker  # brings multiprocessing, which every run would import for the rare model

    with Worker(name="Loading the model") as worker:
        try:
            fits = worker.run(_fits_into_memory, source, timeout=LONGEST_SECONDS)
        except errors.WorkerError as exc:
            raise errors.InferenceError(f"ONNX Runtime does not load the model: {exc}") from exc
    if not fits:
        raise errors.InferenceError(too_much("Loading the model in ONNX Runtime"))


def _fits_into_memory(source: bytes | str) -> bool:
    """Whether a model loads, or fails for another reason than want of memory; in a child."""
    import onnxruntime as ort  # noqa: TID251

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC  # which computes what is constant
    options.log_severity_level = 4
    try:
        with limited_memory(4 * (bytes_of_files(source) if isinstance(source, str) else len(source))):
            ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as exc:  # ONNX Runtime's errors share no base class but this
        return not out_of_memory(exc)
    return True


def limit_run_memory(options: Any) -> None:
    """Let sessions with these options share an allocator of ONNX Runtime's, which gives out a third of what may be taken.

    The rest is for what goes in and comes out, or for the allocator's books: of a loop that makes millions of small tensors
    they are nearly twice as large as the tensors. Unlike a limit on the process, it fails the one allocation that is too
    large: native code of other threads, which may not survive that there is no memory, has enough.
    """
    _register_limited_arena(os.getpid())
    options.add_session_config_entry("session.use_env_allocators", "1")


@functools.cache
def _register_limited_arena(pid: int) -> None:
    import onnxruntime as ort  # noqa: TID251

    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    as_requested = 1
    settings = ort.OrtArenaCfg({"max_mem": memory_limit() // 3, "arena_extend_strategy": as_requested})
    with contextlib.suppress(RuntimeError):  # a script has registered its own, or this process was forked
        ort.create_and_register_allocator(info, settings)


def out_of_memory(exc: Exception) -> bool:
    """Whether ONNX Runtime failed for want of memory."""
    return isinstance(exc, MemoryError) or any(said in str(exc) for said in ("bad_alloc", "Available memory of"))


def _weight_bytes(model: onnx.ModelProto | str) -> int:
    """What a model's own weights may take while it is loaded, which makes copies of them."""
    return 4 * (bytes_of_files(model) if isinstance(model, str) else int(model.ByteSize()))


def can_infer_symbolic_shapes() -> bool:
    """Whether ONNX Runtime's symbolic shape inference is there; it needs sympy, which it does not ask for."""
    return importlib.util.find_spec("sympy") is not None and importlib.util.find_spec("onnxruntime") is not None


def infer_symbolic_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model with what ONNX Runtime's symbolic inference finds of its shapes, complete or not.

    Raises:
        InferenceError: If it fails on this model; operator sets before 7 it does not know.
    """
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference, get_opset  # noqa: TID251

    if (get_opset(model) or 0) < 7:
        raise errors.InferenceError("Symbolic shape inference needs operator set 7 or later.")
    # Its own entry, infer_shapes, leaves a file in the working folder when it cannot tell all shapes.
    inference = SymbolicShapeInference(2**31 - 1, True, False, 0)
    try:
        inference._preprocess(model)
        while inference.run_:
            inference._infer_impl()
        inference._update_output_from_vi()
    except Exception as exc:  # it fails with whatever it stumbles over
        raise errors.InferenceError(f"Symbolic shape inference failed: {exc}") from exc
    inferred: onnx.ModelProto = inference.out_mp_
    return inferred
