"""Settings under Polygraphy's names, read from the environment once; scripts may set them."""

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
"""Whether ``G_LOGGER.internal_error`` raises; trtops itself does not use it."""

AUTOINSTALL_DEPS: bool = _read_setting("AUTOINSTALL_DEPS", "0") not in ("", "0")
"""No effect: trtops installs nothing."""

ASK_BEFORE_INSTALL: bool = _read_setting("ASK_BEFORE_INSTALL", "0") not in ("", "0")
"""No effect: trtops installs nothing."""

INSTALL_CMD: list[str] = _read_setting("INSTALL_CMD", f"{sys.executable} -m pip install").split()
"""No effect; scripts read it."""

ARRAY_SWAP_THRESHOLD_MB: int = _read_whole_number("ARRAY_SWAP_THRESHOLD_MB", "-1")
"""Size in MiB above which arrays in results move to a temporary file; negative keeps all in memory."""

USE_TENSORRT_RTX: bool = _read_setting("USE_TENSORRT_RTX", "0") not in ("", "0")
"""Whether TensorRT-RTX is used instead of TensorRT."""
