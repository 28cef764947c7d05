"""Creates builders and runtimes, and checks for a GPU first."""

from typing import Any

from trtops import errors
from trtops.backend.trt.library import memory
from trtops.backend.trt.library.loading import line, load, load_for_device, uses_rtx
from trtops.backend.trt.library.log import collect_log, get_trt_logger


def make_builder() -> Any:
    """A new ``Builder``; BackendUnavailableError if there is no usable GPU; TensorRT-RTX builds without one."""
    trt = load()
    require_device()
    with collect_log() as log:
        try:
            return trt.Builder(get_trt_logger())
        # The bindings raise this if C++ returned no builder.
        except TypeError as exc:
            raise errors.BackendUnavailableError(f"{line().name} could not make a builder. {log.tail()}") from exc


def make_runtime() -> Any:
    """A new ``Runtime``; BackendUnavailableError if there is no usable GPU."""
    trt = load_for_device()
    # Without a GPU, TensorRT 8.6 would crash.
    require_device(building=False)
    return trt.Runtime(get_trt_logger())


def require_device(building: bool = True) -> None:
    """Raise BackendUnavailableError if there is no GPU, or its driver does not respond; TensorRT-RTX builds without."""
    if building and uses_rtx():
        return
    if memory.device_count() == 0:
        raise errors.BackendUnavailableError(
            f"{line().name} needs a GPU {'to build' if building else 'to load engines'}, and this machine has no "
            "usable one (cudaGetDeviceCount finds no device). Use a machine with one, or the ONNX Runtime back end."
        )
