"""Names imported on first use."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A package imports its names for type checkers under `if TYPE_CHECKING:`. The same lines are read here, so that each
# name is listed once. `*` stands for the names of another such package.
_IMPORT = re.compile(r"^    from ([\w.]+) import (\([^)]*\)|.+)$", re.MULTILINE)


def exports(package: str, table: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``; ``MORE_EXPORTS`` in module ``table`` has further names."""

    @functools.cache
    def homes() -> dict[str, str]:
        source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
        table_exports = importlib.import_module(table).MORE_EXPORTS if table else {}
        modules: dict[str, str] = {}
        for module, names in _IMPORT.findall(source):
            listed = importlib.import_module(module).__all__ if names == "*" else re.findall(r"\w+", names)
            modules |= dict.fromkeys(listed, module)
        return {**modules, **table_exports}

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(homes())
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes()[name]), name)

    return get, lambda: sorted({*vars(sys.modules[package]), *homes()})


def known_as(module: str, *names: str) -> None:
    """Let a module be imported by further names below its own, as documented by Polygraphy.

    After ``known_as("trtops.cuda", "cuda")``, ``from trtops.cuda.cuda import Stream`` works.
    """
    for name in names:
        sys.modules[f"{module}.{name}"] = sys.modules[module]
        setattr(sys.modules[module], name, sys.modules[module])


def function(path: str) -> Callable[..., Any]:
    """Return a function to import and call another, given as ``package.module.name``."""
    module, _, name = path.rpartition(".")
    return lambda *args, **kwargs: getattr(importlib.import_module(module), name)(*args, **kwargs)
