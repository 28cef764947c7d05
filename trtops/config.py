"""Settings from the environment, read once."""

from __future__ import annotations

import os


def _setting(name: str, default: str) -> str:
    return os.environ.get(f"TRTOPS_{name}", os.environ.get(f"POLYGRAPHY_{name}", default))


ARRAY_SWAP_THRESHOLD_MB: int = int(_setting("ARRAY_SWAP_THRESHOLD_MB", "-1"))
"""Arrays in results that are larger than this many MiB are kept in a temporary file; negative keeps all in memory.

Set by ``TRTOPS_ARRAY_SWAP_THRESHOLD_MB`` or, for those used to it, ``POLYGRAPHY_ARRAY_SWAP_THRESHOLD_MB``.
"""

USE_TENSORRT_RTX: bool = _setting("USE_TENSORRT_RTX", "0") != "0"
"""Whether the TensorRT back end uses TensorRT-RTX; set by ``TRTOPS_USE_TENSORRT_RTX`` or the same with POLYGRAPHY."""
