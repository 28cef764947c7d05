"""Settings under Polygraphy's names, read from the environment once; scripts may set them."""

import os
import sys

from trtops import errors


def _read_setting(name: str, default: str) -> str:
    return os.environ.get(f"TRTOPS_{name}", os.environ.get(f"POLYGRAPHY_{name}", default))


# trtops installs nothing and has no internal checks: scripts only read these.
INTERNAL_CORRECTNESS_CHECKS: bool = _read_setting("INTERNAL_CORRECTNESS_CHECKS", "0") not in ("", "0")
AUTOINSTALL_DEPS: bool = _read_setting("AUTOINSTALL_DEPS", "0") not in ("", "0")
ASK_BEFORE_INSTALL: bool = _read_setting("ASK_BEFORE_INSTALL", "0") not in ("", "0")
INSTALL_CMD: list[str] = _read_setting("INSTALL_CMD", f"{sys.executable} -m pip install").split()

_SWAP = _read_setting("ARRAY_SWAP_THRESHOLD_MB", "-1")
if not _SWAP.removeprefix("-").isdecimal():
    raise errors.ConfigError(f"TRTOPS_ARRAY_SWAP_THRESHOLD_MB is {_SWAP!r}; expected a whole number.")
ARRAY_SWAP_THRESHOLD_MB: int = int(_SWAP)
"""Size in MiB above which arrays in results move to a temporary file; negative keeps all in memory."""

USE_TENSORRT_RTX: bool = _read_setting("USE_TENSORRT_RTX", "0") not in ("", "0")
"""Whether TensorRT-RTX is used instead of TensorRT."""
