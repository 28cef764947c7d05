"""Device memory and streams under Polygraphy's names; :mod:`trtops.backend.trt.library.memory` implements them."""

from __future__ import annotations

from typing import Any

from trtops.lazy import known_as

__all__ = ["DeviceArray", "DeviceView", "Event", "PinnedArray", "Stream", "device_count"]  # noqa: F822 - see below


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trtops.backend.trt.library import memory

    return getattr(memory, name)


known_as(__name__, "cuda")
