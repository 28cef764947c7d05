"""One package's modules under another package's name as well."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any


def mirrored(package: str, original: str) -> None:
    """Let the modules of a package be imported from another package too, where that has none of the name itself.

    They are the same modules under both names, imported on first use; ``python -m`` runs them by either, and ``runpy``
    by the package's name only where it was not imported by that before: a module has one name for its loader.

    Args:
        package: The package that has them too, ``__name__``.
        original: The package whose modules they are.
    """
    sys.meta_path.append(_Mirror(package, original))


class _Mirror(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds the modules of a package below another's name."""

    def __init__(self, package: str, original: str) -> None:
        self._package = package
        self._original = original

    def find_spec(
        self, fullname: str, path: Any = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        behind = self._spec_behind(fullname) if fullname.startswith(f"{self._package}.") else None
        # Its origin becomes `sys.argv[0]` where `python -m` runs it.
        return behind and importlib.util.spec_from_loader(fullname, self, origin=behind.origin)

    def exec_module(self, module: types.ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._name_behind(module.__name__))

    def is_package(self, fullname: str) -> bool:
        found = self._spec_behind(fullname)
        return found is not None and found.submodule_search_locations is not None

    def get_code(self, fullname: str) -> types.CodeType | None:
        return self._loader_behind(fullname).get_code(self._name_behind(fullname))

    def get_source(self, fullname: str) -> str | None:
        return self._loader_behind(fullname).get_source(self._name_behind(fullname))

    def _name_behind(self, fullname: str) -> str:
        return self._original + fullname.removeprefix(self._package)

    def _spec_behind(self, fullname: str) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.find_spec(self._name_behind(fullname))

    def _loader_behind(self, fullname: str) -> importlib.abc.InspectLoader:
        found = self._spec_behind(fullname)
        if found is None or not isinstance(found.loader, importlib.abc.InspectLoader):
            raise ImportError(f"{fullname} has no source of its own.", name=fullname)
        return found.loader
