"""The door to TensorRT: the import, the check that numpy arrays get through, the log, and the release line.

TensorRT-RTX is used instead of TensorRT where :data:`trtops.config.USE_TENSORRT_RTX` says so. One
process uses one of the two: their bindings register the same C++ types and do not live side by side.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtops import config, errors
from trtops.backend.trt.lines import ReleaseLine, release_line

LOGGER = logging.getLogger("trtops.tensorrt")

_LEVELS = {
    "INTERNAL_ERROR": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    "INFO": logging.INFO,
    "VERBOSE": logging.DEBUG,
}


def uses_rtx() -> bool:
    """Whether TensorRT-RTX stands in for TensorRT in this process."""
    return config.USE_TENSORRT_RTX


def load() -> Any:
    """The ``tensorrt`` module, or its TensorRT-RTX counterpart, imported at the first call.

    Raises:
        BackendUnavailableError: If it is not installed, cannot be loaded, or reads numpy arrays wrongly here.
    """
    return _load(uses_rtx())


def load_for_device() -> Any:
    """What :func:`load` returns, for who needs the GPU next: CUDA's context is made beside it, and goes on being made after.

    Whoever then asks CUDA for anything waits for it. On an H200 it takes a quarter of a second, in which TensorRT can be
    imported and a plan be read.

    Raises:
        BackendUnavailableError: As :func:`load` does. That there is no GPU is for :func:`require_device` to say.
    """
    if not _load.cache_info().currsize:
        threading.Thread(target=_start_cuda, name="trtops-cuda").start()
    return load()


def _start_cuda() -> None:
    """Make the context that the CUDA runtime would make at its first use, unless CUDA is in use already.

    Where nobody has used CUDA, everybody's current device is the first, and its primary context is the runtime's. By the
    driver itself, whose calls let other threads go on; importing bindings here would make them wait.
    """
    not_initialized = 3  # CUDA_ERROR_NOT_INITIALIZED
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return  # no driver
    context, device = ctypes.c_void_p(), ctypes.c_int()
    if cuda.cuCtxGetCurrent(ctypes.byref(context)) != not_initialized:
        return
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0:
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def line() -> ReleaseLine:
    """The release line of :func:`load`'s module, probed once."""
    return _line(uses_rtx())


@functools.cache
def _load(rtx: bool) -> Any:
    module = _import_rtx() if rtx else _import("tensorrt", "Install it with: pip install tensorrt")
    check_numpy(module)
    return module


@functools.cache
def _line(rtx: bool) -> ReleaseLine:
    return release_line(_load(rtx))


def _import(name: str, advice: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise errors.BackendUnavailableError(f"{name} cannot be imported ({exc}). {advice}.") from exc


def _import_rtx() -> Any:
    if importlib.util.find_spec("tensorrt_rtx") is not None:
        return _import("tensorrt_rtx", "Install tensorrt-rtx")
    _load_rtx_libraries()
    return _import(
        "tensorrt_rtx_bindings",
        "Install tensorrt-rtx, or tensorrt-rtx-cu13-bindings together with onnxruntime-ep-nv-tensorrt-rtx-cu13 of the "
        "release that carries the same TensorRT-RTX",
    )


def _load_rtx_libraries() -> None:
    """Load the libraries that ONNX Runtime's TensorRT-RTX provider carries, so that the bindings find them.

    The loader resolves a needed library by its soname if one of that name is loaded already; no search path is needed.
    """
    spec = importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for stem in ("libtensorrt_rtx.so.*", "libtensorrt_onnxparser_rtx.so.*"):
            for path in sorted(Path(folder).glob(stem)):
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)


def check_numpy(module: Any) -> None:
    """Send a small array through the bindings and back.

    Bindings built against numpy 1 (8.6 to 10.0) read arrays of numpy 2 as zeros, without a word.

    Raises:
        BackendUnavailableError: If other values come back; says what to install.
    """
    import numpy as np

    sent = np.arange(1, 5, dtype=np.float32)
    found = np.array(module.Weights(sent).numpy())
    if found.shape != sent.shape or not np.array_equal(found, sent):
        raise errors.BackendUnavailableError(
            f"TensorRT {module.__version__} reads arrays of numpy {np.__version__} wrongly: {sent.tolist()} became "
            f"{found.tolist()}, and every weight would. Install numpy below 2 beside it: pip install 'numpy<2'."
        )


class LogLines:
    """What TensorRT logged while this was collecting.

    Attributes:
        lines: Severity name and text of each message, oldest first; without verbose ones unless asked for.
    """

    def __init__(self, verbose: bool, thread: int | None = None) -> None:
        self.lines: list[tuple[str, str]] = []
        self.verbose = verbose
        self.thread = thread

    def hear(self, severity: str, message: str) -> None:
        """Take a message, if it is of the kind that is collected here; called in the thread that it comes from."""
        if (severity != "VERBOSE" or self.verbose) and self.thread in (None, threading.get_ident()):
            self.lines.append((severity, message))

    @property
    def text(self) -> str:
        """All messages, one per line, with their severity in front."""
        return "".join(f"[{severity}] {message}\n" for severity, message in self.lines)

    def tail(self, count: int = 5) -> str:
        """The last error messages, or if there is none the last warnings, for the end of an error message."""
        for severities in (("INTERNAL_ERROR", "ERROR"), ("WARNING",)):
            found = [message for severity, message in self.lines if severity in severities]
            if found:
                return "TensorRT's last words:\n  " + "\n  ".join(found[-count:])
        return "TensorRT logged no error."

    def said(self, fragment: str) -> bool:
        """Whether some message contains a text."""
        return any(fragment in message for _, message in self.lines)


_collectors: list[LogLines] = []


@contextmanager
def collect_log(verbose: bool = False, *, here: bool = False) -> Iterator[LogLines]:
    """Collect what TensorRT logs inside the block, beside its going to ``logging``.

    Args:
        verbose: Whether verbose messages are collected too.
        here: Whether only messages of the calling thread are; otherwise those of all threads.
    """
    lines = LogLines(verbose, threading.get_ident() if here else None)
    _collectors.append(lines)
    try:
        yield lines
    finally:
        _collectors.remove(lines)


def remark(message: str) -> None:
    """Warn in TensorRT's log, of something that trtops found: in ``logging``, and to all who collect."""
    for lines in tuple(_collectors):
        lines.hear("WARNING", f"trtops: {message}")
    LOGGER.warning("%s", message)


def get_trt_logger() -> Any:
    """The one ``ILogger`` of this process: it passes TensorRT's messages on to ``logging`` as ``trtops.tensorrt``."""
    return _make_logger(uses_rtx())


@functools.cache
def _make_logger(rtx: bool) -> Any:
    trt = _load(rtx)
    base: Any = trt.ILogger

    class TensorRTLog(base):  # type: ignore[misc]
        """Writes to ``logging`` and to whoever collects. Called from C++ and from any thread, so it never raises."""

        def __init__(self) -> None:
            # Not super(): the bindings need the call on the class itself, and crash later without it.
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            name = severity.name
            level = _LEVELS.get(name, logging.INFO)
            for lines in tuple(_collectors):
                lines.hear(name, msg)
            if LOGGER.isEnabledFor(level):
                LOGGER.log(level, "%s", msg)

    return TensorRTLog()


def make_builder() -> Any:
    """A new ``Builder``.

    Raises:
        BackendUnavailableError: If there is no usable GPU (TensorRT-RTX builds without).
    """
    trt = load()
    require_device()
    with collect_log() as log:
        try:
            return trt.Builder(get_trt_logger())
        except TypeError as exc:  # what the bindings raise where C++ returned no builder
            raise errors.BackendUnavailableError(f"{line().name} could not make a builder. {log.tail()}") from exc


def make_runtime() -> Any:
    """A new ``Runtime``.

    Raises:
        BackendUnavailableError: If there is no usable GPU; TensorRT 8.6 would take the process down.
    """
    trt = load_for_device()
    require_device(building=False)
    return trt.Runtime(get_trt_logger())


def require_device(building: bool = True) -> None:
    """Go on only if there is a GPU.

    Args:
        building: Whether it is for building, which TensorRT-RTX does without.

    Raises:
        BackendUnavailableError: If there is none, or its driver does not answer.
    """
    if building and uses_rtx():
        return
    from trtops.backend.trt.library import memory

    if memory.device_count() == 0:
        raise errors.BackendUnavailableError(
            f"{line().name} needs a GPU {'to build on' if building else 'to load engines'}, and there is none here "
            "(cudaGetDeviceCount finds no device). Use a machine with one, or the ONNX Runtime back end."
        )
