"""Device memory and streams, for those who hand arrays on the GPU to runners and calibrators.

The names are Polygraphy's; the work is done in :mod:`trtops.backend.trt.library.memory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtops.backend.trt.library.memory import DeviceArray, DeviceView, Event, PinnedArray, Stream, device_count

__all__ = ["DeviceArray", "DeviceView", "Event", "PinnedArray", "Stream", "device_count", "wrapper"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trtops.backend.trt.library import memory

    return getattr(memory, name)


def wrapper() -> Any:
    """The CUDA runtime's bindings; their functions return a status and values."""
    from trtops.backend.trt.library import memory

    return memory.cudart()
