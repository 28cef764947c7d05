"""Loaders independent of back ends: bytes from and to files, objects from Python scripts."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from trtops import errors
from trtops.backend.loader import BaseLoader, ValueOrCallable, immediately
from trtops.func import value_of
from trtops.lazy import known_as
from trtops.record import sha256
from trtops.system.allowed import check_file
from trtops.system.files import open_atomically, read_regular, write_open_file

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BytesFromPath(BaseLoader[bytes]):
    """Reads a file's bytes."""

    path: str | Path

    def call_impl(self) -> bytes:
        """Read the file; FormatError if it does not exist or cannot be read."""
        log.info("Loading bytes from %s", self.path)
        try:
            return read_regular(self.path)
        except OSError as exc:
            raise errors.FormatError(f"{self.path} cannot be read: {exc.strerror}. Expected a file.") from exc


@dataclass(frozen=True)
class SaveBytes(BaseLoader["bytes | memoryview"]):
    """Writes bytes (or anything with the buffer protocol) to a file, completely or not at all, and returns them.

    The file is replaced if it exists, and its folder is created; an open file is written to.
    """

    obj: ValueOrCallable[bytes] | memoryview = field(repr=False)
    path: str | os.PathLike[str] | IO[Any]

    def call_impl(self) -> bytes | memoryview:
        """Write the file and return the bytes; after an OSError the old file is unchanged."""
        data = self.obj if isinstance(self.obj, memoryview) else value_of(self.obj)
        log.info("Saving %d bytes to %s", memoryview(data).nbytes, self.path)
        if not isinstance(self.path, (str, os.PathLike)):
            write_open_file(self.path, data)
            return data
        with open_atomically(self.path) as file:
            file.write(data)
        return data


@dataclass(frozen=True)
class InvokeFromScript(BaseLoader[Any]):
    """Calls a function of a Python script, or an object of one of its classes, whose other attributes are its own.

    The script is run at every call, with its own folder first on ``sys.path``; the caller must trust it.
    """

    path: str | Path
    name: str

    def call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, and return its result; ConfigError if the script does not exist or does not define the name."""
        return self._definition()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # A compare function of a script also has thresholds.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._definition(), name)

    def _definition(self) -> Any:
        definition = import_from_script(self.path, self.name)
        return definition() if isinstance(definition, type) else definition


def invoke_from_script(path: str | Path, name: str, *args: Any, **kwargs: Any) -> Any:
    """Create an :class:`InvokeFromScript` and call it."""
    return InvokeFromScript(path, name)(*args, **kwargs)


def import_from_script(path: str | Path, name: str) -> Any:
    """Run a Python script as a module, and return its object ``name``.

    ConfigError if it does not exist, may not be run (:mod:`trtops.system.allowed`), or does not define the name.
    """
    path = Path(path).absolute()
    if not path.exists():
        raise errors.ConfigError(f"{path} does not exist; expected a Python script.")
    if path.suffix != ".py" or not path.is_file():
        raise errors.ConfigError(f"{path} is not a Python script; expected a file that ends in .py.")
    check_file(path)
    module_name = f"trtops_script_{sha256(os.fsencode(path))[:16]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look the module up while the script runs, and afterwards.
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    if name not in vars(module):
        names = [n for n in vars(module) if not n.startswith("_")]
        raise errors.ConfigError(
            f"Could not import symbol: {name} from {path}, which does not define it. {errors.near(name, names)}"
        )
    return vars(module)[name]


bytes_from_path = immediately(BytesFromPath)
save_bytes = immediately(SaveBytes)

known_as(__name__, "loader")
