"""Settings, under the names that Polygraphy has for them: read from the environment once, and there for scripts to set."""

from __future__ import annotations

import os
import sys

from trtops import errors


def _read_setting(name: str, default: str) -> str:
    return os.environ.get(f"TRTOPS_{name}", os.environ.get(f"POLYGRAPHY_{name}", default))


def _read_whole_number(name: str, default: str) -> int:
    text = _read_setting(name, default)
    try:
        return int(text)
    except ValueError:
        raise errors.ConfigError(f"TRTOPS_{name} is {text!r}; expected a whole number.") from None


INTERNAL_CORRECTNESS_CHECKS: bool = _read_setting("INTERNAL_CORRECTNESS_CHECKS", "0") not in ("", "0")
"""Whether ``G_LOGGER.internal_error`` raises. trtops has no such checks itself: they are part of its tests."""

AUTOINSTALL_DEPS: bool = _read_setting("AUTOINSTALL_DEPS", "0") not in ("", "0")
"""Read, and without effect: nothing is installed by a script or command; what is missing is said."""

ASK_BEFORE_INSTALL: bool = _read_setting("ASK_BEFORE_INSTALL", "0") not in ("", "0")
"""Read, and without effect, as nothing is installed."""

INSTALL_CMD: list[str] = _read_setting("INSTALL_CMD", f"{sys.executable} -m pip install").split()
"""The command that installs a package, for scripts that read it."""

ARRAY_SWAP_THRESHOLD_MB: int = _read_whole_number("ARRAY_SWAP_THRESHOLD_MB", "-1")
"""Arrays in results that are larger than this many MiB are kept in a temporary file; negative keeps all in memory.

Set by ``TRTOPS_ARRAY_SWAP_THRESHOLD_MB`` or ``POLYGRAPHY_ARRAY_SWAP_THRESHOLD_MB``.
"""

USE_TENSORRT_RTX: bool = _read_setting("USE_TENSORRT_RTX", "0") not in ("", "0")
"""Whether TensorRT-RTX stands in for TensorRT.

Set by ``TRTOPS_USE_TENSORRT_RTX`` or ``POLYGRAPHY_USE_TENSORRT_RTX``.
"""
