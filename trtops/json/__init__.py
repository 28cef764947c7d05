"""Saved formats: Polygraphy's JSON, both ways, and a faster one.

**JSON.** Objects of known types are JSON objects with a member ``polygraphy_class`` that names the type; arrays are the
base64 text of a ``.npy`` file. Old releases of Polygraphy wrote a member ``__polygraphy_encoded_<Type>`` instead, and
arrays as latin-1 text or as an archive. ``NaN`` and ``Infinity`` are written bare.

**npz.** A path that ends in ``.npz`` gets an uncompressed ZIP archive with the same content: ``index.json``, in which
``{"array": <member's name>}`` stands for an array, and one ``.npy`` member per array. It is faster, and reading needs
no memory besides the arrays.

Nothing read from a file is executed: there is no pickle, arrays of objects are refused, and a file that is cut short,
foreign or claims more than it holds raises ``FormatError``.
"""

import io
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

from trtops import errors
from trtops.json.objects import MARKER, Decoder, Encoder
from trtops.lazy import known_as
from trtops.system.files import open_atomically, read_open_file, write_open_file

__all__ = ["MARKER", "Decoder", "Encoder", "add_json_methods", "from_json", "load_json", "save_json", "to_json"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
Source: TypeAlias = str | os.PathLike[str] | IO[str] | IO[bytes]


def to_json(obj: object) -> str:
    """Return the JSON text of JSON values, arrays, and objects of registered types, nested as needed."""
    from trtops.json.formats import TextWriter  # slow imports, needed only by scripts that save or load

    out = io.BytesIO()
    TextWriter(out).write(obj)
    return out.getvalue().decode("ascii")


def from_json(src: str | bytes) -> Any:
    """Return the object from :func:`to_json`'s text; FormatError if the text is damaged or not JSON."""
    from trtops.json.formats import load_text

    return load_text(_encoded(src), "the text")


def save_json(obj: object, dest: Source, description: str | None = None) -> None:
    """Save JSON values, arrays, and objects of registered types to a file.

    A path is replaced when the file is complete: by an archive if it ends in ``.npz``, otherwise by JSON. An open file
    gets JSON. The log names a path by its ``description``. FormatError if something has no saved form; the path is left
    as it was.
    """
    from trtops.json.formats import ArchiveWriter, TextWriter

    if isinstance(dest, (str, os.PathLike)):
        if description is not None:
            _log.info("Saving %s to %s", description, os.fspath(dest), extra={"on_stdout": True})
        with open_atomically(dest) as file:
            if Path(dest).suffix == ".npz":
                ArchiveWriter(file).write_archive(obj)
            else:
                TextWriter(file).write(obj)
    elif isinstance(dest, (io.RawIOBase, io.BufferedIOBase)):
        TextWriter(dest).write(obj)
    else:
        write_open_file(dest, to_json(obj).encode())


def load_json(src: Source, description: str | None = None) -> Any:
    """Load an object saved to a path or an open file by :func:`save_json` or Polygraphy.

    The format is recognized by the first bytes. ``description`` is for errors. FormatError if the file
    is cut short, not one of the two formats, of a newer version, or holds something unknown or refused.
    """
    from trtops.json.formats import load_archive, load_text

    if isinstance(src, (str, os.PathLike)):
        name = f"{description + ' ' if description else ''}{os.fspath(src)}"
        with open(src, "rb", buffering=0) as file:  # a buffer would be copied once more
            start = file.read(2)
            file.seek(0)
            if start == b"PK":
                return load_archive(io.BufferedReader(file), name)
            content: str | bytes = file.read()
    else:
        name, content = description or "the file", read_open_file(src)
        if isinstance(content, bytes) and content.startswith(b"PK"):
            return load_archive(io.BytesIO(content), name)
    return load_text(_encoded(content), name)


def add_json_methods(description: str | None = None) -> Callable[[type[T]], type[T]]:
    """Decorate a registered type to add ``to_json``, ``from_json``, ``save`` and ``load``."""

    def decorate(cls: type[T]) -> type[T]:
        def checked(obj: object, name: str) -> T:
            if not isinstance(obj, cls):
                raise errors.FormatError(f"{name} holds a {type(obj).__name__}; expected {cls.__name__}.")
            return obj

        methods = {
            "to_json": to_json,
            "from_json": staticmethod(lambda src: checked(from_json(src), "the text")),
            "save": lambda self, dest: save_json(self, dest, description),
            "load": staticmethod(lambda src: checked(load_json(src, description), str(src))),
        }
        for name, function in methods.items():
            setattr(cls, name, function)
        return cls

    return decorate


def _encoded(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


known_as(__name__, "serde")
