"""Names imported on first use."""

from __future__ import annotations

import functools
import importlib
import sys

TYPE_CHECKING = False  # type checkers take it as true
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def exports(
    package: str, more: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``.

    Names are those that the package's stub re-exports (``import A as A``, ``import *``), as type checkers read it;
    ``more`` has further names with their modules.
    """

    @functools.cache
    def modules() -> dict[str, str]:
        import ast
        from pathlib import Path

        stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
        names: dict[str, str] = {}
        for node in ast.parse(stub.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                names.update(dict.fromkeys(importlib.import_module(str(node.module)).__all__, str(node.module)))
            elif isinstance(node, ast.ImportFrom):
                names.update({alias.name: str(node.module) for alias in node.names if alias.asname == alias.name})
        return {**names, **(more or {})}

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(modules())
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules()[name] == package:  # a module below
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(modules()[name]), name)

    return get, lambda: sorted({*modules(), *(name for name in vars(sys.modules[package]) if name[:2] == "__")})


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
