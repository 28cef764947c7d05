"""Loaders that belong to no back end: bytes from and to files, objects from Python scripts."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trtops import errors
from trtops.allowed import check_file
from trtops.backend.immediate import immediately
from trtops.files import open_atomically as open_atomically
from trtops.files import write_open_file
from trtops.func import value_of
from trtops.lazy import known_as
from trtops.record import sha256

if TYPE_CHECKING:
    from trtops.backend.base import ValueOrCallable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BytesFromPath:
    """Reads a file's bytes.

    Attributes:
        path: The file.
    """

    path: str | Path

    def __call__(self) -> bytes:
        """Read the file.

        Raises:
            FormatError: If there is no such file, or it cannot be read.
        """
        log.info("Loading bytes from %s", self.path)
        try:
            return Path(self.path).read_bytes()
        except OSError as exc:
            raise errors.FormatError(f"{self.path} cannot be read: {exc.strerror}. Expected a file.") from exc


bytes_from_path = immediately(BytesFromPath)


@dataclass(frozen=True)
class SaveBytes:
    """Writes bytes to a file, whole or not at all, and passes them on.

    Attributes:
        obj: The bytes (anything with the buffer protocol), or a callable that makes them.
        path: The file; its folder is made if there is none, and a file that is there already is replaced. Or an open file.
    """

    obj: ValueOrCallable[bytes] | memoryview = field(repr=False)
    path: str | os.PathLike[str] | IO[Any]

    def __call__(self) -> bytes | memoryview:
        """Write the file and return the bytes.

        Raises:
            OSError: If it cannot be written; nothing is left then, or the old file as it was.
        """
        data = self.obj if isinstance(self.obj, memoryview) else value_of(self.obj)
        log.info("Saving %d bytes to %s", memoryview(data).nbytes, self.path)
        if not isinstance(self.path, (str, os.PathLike)):
            write_open_file(self.path, data)
            return data
        with open_atomically(self.path) as file:
            file.write(data)
        return data


save_bytes = immediately(SaveBytes)


@dataclass(frozen=True)
class InvokeFromScript:
    """Calls something that a Python script defines.

    Attributes:
        path: The script, which ends in ``.py``. It is run anew at every call, with its own folder first on
            ``sys.path``. Whoever names a script trusts it.
        name: A function in it, or a class, of which one is made without arguments and called.
    """

    path: str | Path
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, and return what it returns.

        Raises:
            ConfigError: If there is no such script, or it does not define the name.
        """
        found = import_from_script(self.path, self.name)
        return (found() if isinstance(found, type) else found)(*args, **kwargs)


def invoke_from_script(path: str | Path, name: str, *args: Any, **kwargs: Any) -> Any:
    """Do at once what :class:`InvokeFromScript` does when called."""
    return InvokeFromScript(path, name)(*args, **kwargs)


def import_from_script(path: str | Path, name: str) -> Any:
    """Run a Python script as a module, and return what it calls ``name``.

    Args:
        path: The script, which ends in ``.py``.
        name: Something that it defines.

    Raises:
        ConfigError: If there is no such script, it may not be run (:mod:`trtops.allowed`), or it does not define the name.
            What the script itself raises passes through.
    """
    path = Path(path).absolute()
    if not path.exists():
        raise errors.ConfigError(f"{path} does not exist; expected a Python script.")
    if path.suffix != ".py" or not path.is_file():
        raise errors.ConfigError(f"{path} is no Python script; expected a file that ends in .py.")
    check_file(path)
    module_name = f"trtops_script_{sha256(os.fsencode(path))[:16]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up while the script runs, and afterwards.
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
        raise errors.ConfigError(f"{path} does not define {name!r}. {errors.near(name, names)}")
    return vars(module)[name]


known_as(__name__, "loader")
