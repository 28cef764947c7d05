"""Modules imported on first use, for scripts written or generated with Polygraphy."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from trtops import config, errors
from trtops.lazy import known_as

LATEST_VERSION = "==latest"  # any installed version; for scripts that name it

known_as(__name__, "exporter", "importer", "trt_importer", "util")
T = TypeVar("T")


class LazyModule:
    """A module imported when an attribute is first read or set."""

    def __init__(self, name: str) -> None:
        vars(self).update(_name=name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._imported(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._imported(), name, value)

    def _imported(self) -> Any:
        name: str = vars(self)["_name"]
        try:
            # TensorRT comes with its libraries and the checks of its release.
            if name == ("tensorrt_rtx" if config.USE_TENSORRT_RTX else "tensorrt"):
                return importlib.import_module("trtops.backend.trt.library").load()
            return importlib.import_module(name)
        except ImportError as exc:
            raise errors.BackendUnavailableError(
                f"Module: '{name}' is required but could not be imported ({exc}). trtops installs nothing itself: "
                f"pip install {name.partition('.')[0]}"
            ) from exc


def lazy_import(
    name: str, log: object = None, pkg_name: object = None, install_flags: object = None, requires: object = None
) -> Any:
    """Return a module, imported on first use; a version in the name and other arguments have no effect."""
    return LazyModule(re.split("[=<>]", name)[0].strip())


def autoinstall(lazy_mod: Any) -> None:
    """Do nothing; scripts call it."""


def export(funcify: bool = False, func_name: str | None = None) -> Callable[[T], T]:
    """Return a decorator to add a name to ``__all__``; with ``funcify``, a loader's function in snake_case, too."""

    def add(obj: Any) -> Any:
        module = sys.modules[obj.__module__]
        names = {obj.__name__: obj}
        if funcify:
            function = importlib.import_module("trtops.backend.loader").immediately(obj)
            names[func_name or function.__name__] = function
            setattr(module, func_name or function.__name__, function)
        module.__all__ = [*getattr(module, "__all__", ()), *names]  # type: ignore[attr-defined]
        return obj

    return add


def import_from_script(path: str | Path, name: str) -> Any:
    """Return an object of a Python script; see :func:`trtops.backend.common.import_from_script`."""
    # Most users of this module do not need back ends.
    return importlib.import_module("trtops.backend.common").import_from_script(path, name)


def version(version_str: str) -> tuple[Any, ...]:
    """Return a version as a tuple to compare: ``(1, 8, 0)``; a part such as ``0rc1`` becomes a nested tuple."""
    parts: list[Any] = []
    for part in re.split(r"[.+]", version_str):
        suffix = re.search("a|b|rc|post|dev", part)
        local = f"+{part}" in version_str
        parts.append(int(part) if part.isdigit() else part.partition(suffix[0]) if suffix and not local else part)
    return tuple(parts)


def lazy_import_trt() -> Any:
    """Return TensorRT, or TensorRT-RTX if in use, imported on first use."""
    return LazyModule("tensorrt_rtx" if config.USE_TENSORRT_RTX else "tensorrt")
