"""Modules imported on first use, for scripts that were written or generated with Polygraphy."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import operator
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
_RELATIONS = {"==": operator.eq, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}

log = logging.getLogger(__name__)

known_as(__name__, "importer", "trt_importer", "util")


class LazyModule:
    """A module that is imported when an attribute is first read or set."""

    def __init__(self, name: str, wanted: str | None = None) -> None:
        """Store the module's name, and the version it should have, such as ``>=1.8``."""
        vars(self).update(_name=name, _wanted=wanted, _module=None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._imported(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._imported(), name, value)

    def _imported(self) -> Any:
        own = vars(self)
        if own["_module"] is None:
            try:
                own["_module"] = _import_module(own["_name"])
            except ImportError as exc:
                package = own["_name"].partition(".")[0]
                raise errors.BackendUnavailableError(
                    f"Module: '{own['_name']}' is required but could not be imported ({exc}). trtops installs "
                    f"nothing itself: pip install {package}"
                ) from exc
            _warn_of_version(own["_module"], own["_wanted"])
        return own["_module"]

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


def _import_module(name: str) -> Any:
    """Import a module; TensorRT with its libraries and the checks of its release."""
    if name == ("tensorrt_rtx" if config.USE_TENSORRT_RTX else "tensorrt"):
        return importlib.import_module("trtops.backend.trt.library").load()
    return importlib.import_module(name)


def _warn_of_version(module: Any, wanted: str | None) -> None:
    found = getattr(module, "__version__", None)
    if wanted is None or found is None or wanted == LATEST_VERSION:
        return
    relation, least = re.fullmatch(r"\s*(==|>=|<=|>|<)\s*(.*?)\s*", wanted).groups()  # type: ignore[union-attr]
    if not _RELATIONS[relation](version(found), version(least)):
        log.error(
            "Module: '%s' version '%s' is installed, but version '%s' is required", module.__name__, found, wanted
        )


def lazy_import(
    name: str,
    log: bool | None = None,
    pkg_name: str | None = None,
    install_flags: Sequence[str] | None = None,
    requires: Sequence[str] | None = None,
) -> Any:
    """Return a stand-in for a module that is imported on first use.

    Args:
        name: The module, with a version if one is needed: ``onnx>=1.8``. Other versions are used with an error message.
        log: Ignored, as are the following: trtops installs nothing. Scripts pass them.
        pkg_name: Ignored.
        install_flags: Ignored.
        requires: Ignored.
    """
    bare, relation, rest = re.fullmatch(r"([^=<>]*)([=<>]*)(.*)", name).groups()  # type: ignore[union-attr]
    return LazyModule(bare.strip(), f"{relation}{rest}" if relation else None)


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
