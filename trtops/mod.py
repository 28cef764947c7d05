"""Modules imported on first use, for scripts that were written or generated with Polygraphy."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtops import config, errors
from trtops.lazy import known_as

__all__ = [
    "LATEST_VERSION",
    "LazyModule",
    "autoinstall",
    "import_from_script",
    "lazy_import",
    "lazy_import_trt",
    "tensorrt_module_and_version_string",
    "version",
]

LATEST_VERSION = "==latest"
"""Any installed version."""

_SUFFIXES = ("a", "b", "rc", "post", "dev")

known_as(__name__, "importer", "trt_importer", "util")


class LazyModule:
    """A module that is imported when an attribute is first read or set."""

    def __init__(self, name: str) -> None:
        """Store the module's name."""
        vars(self).update(_name=name)

    def __getattr__(self, name: str) -> Any:
        return getattr(_imported(vars(self)["_name"]), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_imported(vars(self)["_name"]), name, value)

    def is_installed(self) -> bool:
        """Whether the module exists, without importing it."""
        name = vars(self)["_name"]
        try:
            return name in sys.modules or importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False

    def is_importable(self) -> bool:
        """Whether the module can be imported, by importing it."""
        try:
            importlib.import_module(vars(self)["_name"])
        except Exception:  # a broken module can raise anything
            return False
        return True


def _imported(name: str) -> Any:
    """Import a module; TensorRT with its libraries and the checks of its release."""
    try:
        if name == ("tensorrt_rtx" if config.USE_TENSORRT_RTX else "tensorrt"):
            return importlib.import_module("trtops.backend.trt.library").load()
        return importlib.import_module(name)
    except ImportError as exc:
        raise errors.BackendUnavailableError(
            f"Module: '{name}' is required but could not be imported ({exc}). trtops installs nothing itself: "
            f"pip install {name.partition('.')[0]}"
        ) from exc


def lazy_import(
    name: str,
    log: bool | None = None,
    pkg_name: str | None = None,
    install_flags: Sequence[str] | None = None,
    requires: Sequence[str] | None = None,
) -> Any:
    """Return a module that is imported on first use; a version in the name and other arguments have no effect."""
    return LazyModule(re.split("[=<>]", name)[0].strip())


def autoinstall(lazy_mod: Any) -> None:
    """Do nothing; scripts call it."""


def import_from_script(path: str | Path, name: str) -> Any:
    """Return an object of a Python script; see :func:`trtops.backend.common.import_from_script`."""
    from trtops.backend.common import import_from_script as load  # most users of this module do not need back ends

    return load(path, name)


def version(version_str: str) -> tuple[Any, ...]:
    """Return a version as a tuple to compare: ``(1, 8, 0)``; a part such as ``0rc1`` becomes a nested tuple."""
    parts: list[Any] = []
    for part in version_str.split("."):
        number, _, local = part.partition("+")
        suffix = next((s for s in _SUFFIXES if s in number), None)
        parts.append(int(number) if number.isdigit() else number.partition(suffix) if suffix else number)
        parts += [local] if "+" in part else []
    return tuple(parts)


def tensorrt_module_and_version_string() -> str:
    """Return TensorRT's module name with its minimum version, for :func:`lazy_import`."""
    return "tensorrt_rtx>=1.0" if config.USE_TENSORRT_RTX else "tensorrt>=8.6"


def lazy_import_trt() -> Any:
    """Return TensorRT, or TensorRT-RTX where that is used, imported on first use."""
    return lazy_import(tensorrt_module_and_version_string())
