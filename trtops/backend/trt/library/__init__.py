"""Access to TensorRT and CUDA: import, log, builders and runtimes, device memory, and the device's state."""

from trtops.backend.trt.library.handles import make_builder, make_runtime, require_device
from trtops.backend.trt.library.loading import check_numpy, line, load, load_for_device, member, uses_rtx
from trtops.backend.trt.library.log import LogLines, collect_log, get_trt_logger, keep_interrupt, log_warning

__all__ = [
    "LogLines", "check_numpy", "collect_log", "get_trt_logger", "keep_interrupt", "line", "load", "load_for_device",
    "log_warning", "make_builder", "make_runtime", "member", "require_device", "uses_rtx",
]  # fmt: skip
