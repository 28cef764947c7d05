"""Hardware counters, through Linux's ``perf_event_open``."""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Callable

from trtops import errors

_SYSCALLS = {"x86_64": 298, "aarch64": 241}


def count_instructions(kind: int = 0, event: int = 1) -> Callable[[], int]:
    """Count instructions of this thread and of threads started by it from now on; returns a function to read the count.

    UnsupportedFeatureError if the machine has no such counter, or does not allow it.
    """
    # The first version of `struct perf_event_attr`, with flags to include later threads, and to leave out kernel and
    # hypervisor. Process 0 is this thread; any processor (-1), no group (-1), closed on exec (8).
    attributes = struct.pack("IIQQQQQ", kind, 64, event, 0, 0, 0, 1 << 1 | 1 << 5 | 1 << 6).ljust(64, b"\0")
    if sys.platform != "linux":
        raise errors.UnsupportedFeatureError("Instructions can be counted on Linux only. Use --clock cpu-time.")
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.syscall(_SYSCALLS.get(platform.machine(), -1), attributes, 0, -1, -1, 8)
    if handle < 0:
        raise errors.UnsupportedFeatureError(
            f"Instructions cannot be counted (perf_event_open: {os.strerror(ctypes.get_errno())}). Virtual machines "
            "often lack counters, and /proc/sys/kernel/perf_event_paranoid may forbid them. Use --clock cpu-time."
        )
    return lambda: int.from_bytes(os.read(handle, 8), sys.byteorder)
