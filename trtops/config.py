"""Settings, under the names that Polygraphy has for them: read from the environment once, and there for scripts to set."""

from __future__ import annotations

import os

from trtops import errors


def _read_setting(name: str, default: str) -> str:
    return os.environ.get(f"TRTOPS_{name}", os.environ.get(f"POLYGRAPHY_{name}", default))


def _read_whole_number(name: str, default: str) -> int:
    text = _read_setting(name, default)
    try:
        return int(text)
    except ValueError:
        raise errors.ConfigError(f"TRTOPS_{name} is {text!r}; expected a whole number.") from None


ARRAY_SWAP_THRESHOLD_MB: int = _read_whole_number("ARRAY_SWAP_THRESHOLD_MB", "-1")
"""Arrays in results that are larger than this many MiB are kept in a temporary file; negative keeps all in memory.

Set by ``TRTOPS_ARRAY_SWAP_THRESHOLD_MB`` or ``POLYGRAPHY_ARRAY_SWAP_THRESHOLD_MB``.
"""

USE_TENSORRT_RTX: bool = _read_setting("USE_TENSORRT_RTX", "0") not in ("", "0")
"""Whether TensorRT-RTX stands in for TensorRT.

Set by ``TRTOPS_USE_TENSORRT_RTX`` or ``POLYGRAPHY_USE_TENSORRT_RTX``.
"""
