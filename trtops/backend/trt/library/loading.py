"""Imports TensorRT or TensorRT-RTX once, and checks its bindings with a numpy array.

TensorRT-RTX is used if :data:`trtops.config.USE_TENSORRT_RTX` is set.
"""

import ctypes
import functools
import importlib
import importlib.util
import threading
from pathlib import Path
from typing import Any

import numpy as np

from trtops import config, errors
from trtops.backend.trt.lines import ReleaseLine, release_line
from trtops.extras import require


def uses_rtx() -> bool:
    """Whether this process uses TensorRT-RTX instead of TensorRT."""
    # Never both in one process: their bindings register the same C++ types.
    return config.USE_TENSORRT_RTX


def load() -> Any:
    """The ``tensorrt`` module, or its TensorRT-RTX counterpart, imported at the first call.

    Raises BackendUnavailableError if it is not installed, cannot be loaded, or misreads numpy arrays.
    """
    return _import_and_check(uses_rtx())


def load_for_device() -> Any:
    """Return :func:`load`'s module, for callers about to use the GPU.

    The first call starts a thread that creates the CUDA context; the first CUDA call waits for it. A missing GPU is
    reported by :func:`require_device`.
    """
    # Creating the context takes a quarter of a second on an H200, enough to import TensorRT and read a plan. Once the
    # module is imported, there is nothing to do at the same time.
    if not _import_and_check.cache_info().currsize:
        threading.Thread(target=_make_cuda_context, name="trtops-cuda").start()
    return load()


def _make_cuda_context() -> None:
    """Create the CUDA runtime's context before its first use, unless CUDA is already in use."""
    not_initialized = 3  # CUDA_ERROR_NOT_INITIALIZED
    try:
        # ctypes releases the interpreter lock during calls. Importing CUDA's Python bindings here would hold it, and
        # block the import of TensorRT in the other thread.
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return  # no driver
    context, device = ctypes.c_void_p(), ctypes.c_int()
    if cuda.cuCtxGetCurrent(ctypes.byref(context)) != not_initialized:
        return
    # CUDA is not in use yet, so every thread's current device is 0, and the runtime will use its primary context.
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0:
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


_probed_line = functools.cache(release_line)


def line() -> ReleaseLine:
    """The release line of :func:`load`'s module, probed once."""
    return _probed_line(load())


def member(enum: str, value: Any) -> Any:
    """Return a value of one of TensorRT's enums, such as ``TacticSource``, given by its name; others are unchanged.

    Lists and values of mappings are names as well. If this release lacks the enum, the name is returned, and the option
    that takes it is refused as a feature of other releases. ConfigError if the enum lacks the name.
    """
    if isinstance(value, (list, tuple)):
        return [member(enum, name) for name in value]
    if not isinstance(value, str):
        return value
    name = value.strip().upper().replace("-", "_")
    members = getattr(getattr(load(), enum, None), "__members__", None)
    if members is None:
        return value
    if name not in members:
        raise errors.ConfigError(f"{enum} has no {name!r} in this release. {errors.near(name, members)}".rstrip())
    return members[name]


@functools.cache
def _import_and_check(rtx: bool) -> Any:
    if not rtx:
        require("tensorrt")
    module = _import_rtx() if rtx else _import_module("tensorrt", "Repair its installation")
    check_numpy(module)
    return module


def _import_module(name: str, advice: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise errors.BackendUnavailableError(f"{name} cannot be imported ({exc}). {advice}.") from exc


def _import_rtx() -> Any:
    if importlib.util.find_spec("tensorrt_rtx") is not None:
        return _import_module("tensorrt_rtx", "Install tensorrt-rtx")
    # The libraries of ONNX Runtime's TensorRT-RTX provider, which the bindings then find: the dynamic linker does not
    # search for a library whose soname is already loaded.
    spec = importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for stem in ("libtensorrt_rtx.so.*", "libtensorrt_onnxparser_rtx.so.*"):
            for path in sorted(Path(folder).glob(stem)):
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    return _import_module(
        "tensorrt_rtx_bindings",
        "Install tensorrt-rtx, or tensorrt-rtx-cu13-bindings together with onnxruntime-ep-nv-tensorrt-rtx-cu13 of the "
        "release that carries the same TensorRT-RTX",
    )


def check_numpy(module: Any) -> None:
    """Raise BackendUnavailableError if a small array does not pass through the bindings and back unchanged."""
    # Bindings built against numpy 1 (TensorRT 8.6 to 10.0) silently read arrays of numpy 2 as zeros.
    sent = np.arange(1, 5, dtype=np.float32)
    returned = np.array(module.Weights(sent).numpy())
    if returned.shape != sent.shape or not np.array_equal(returned, sent):
        raise errors.BackendUnavailableError(
            f"TensorRT {module.__version__} reads arrays of numpy {np.__version__} incorrectly: {sent.tolist()} became "
            f"{returned.tolist()}, and so would every weight. Install numpy below 2: pip install 'numpy<2'."
        )
