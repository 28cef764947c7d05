"""Saved formats: Polygraphy's JSON, both ways, and a fast one beside it.

**JSON.** Objects of known types are JSON objects with a member ``polygraphy_class`` that names the type; arrays are the
base64 text of a ``.npy`` file. This is Polygraphy's format: its files are read, also those of old releases (a member
``__polygraphy_encoded_<Type>`` instead, arrays as latin-1 text or as an archive), and it reads ours. ``NaN`` and
``Infinity`` are written bare, as it writes them.

**npz.** A path that ends in ``.npz`` gets an uncompressed ZIP archive with the same content: ``index.json``, in which
``{"array": <member's name>}`` stands for an array, and one ``.npy`` member per array. ``numpy.load`` opens it too.

Both are written block by block to a temporary file beside the target, which they replace when complete: nothing
half-written ever bears the name. Nothing read from a file is executed: there is no pickle in either format, arrays of
objects are refused, and a file that is cut short, foreign or claims more than it holds raises ``FormatError``.

Types say how they are saved through :class:`Encoder` and :class:`Decoder`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar, cast

from trtops import errors
from trtops.files import open_atomically, write_open_file
from trtops.json.objects import HOMES, LEGACY_MARKER, LEGACY_VALUE, MARKER, Decoder, Encoder
from trtops.lazy import known_as

__all__ = [
    "HOMES",
    "LEGACY_MARKER",
    "LEGACY_VALUE",
    "MARKER",
    "Decoder",
    "Encoder",
    "add_json_methods",
    "from_json",
    "load_json",
    "save_json",
    "to_json",
]

T = TypeVar("T")
Source: TypeAlias = "str | os.PathLike[str] | IO[str] | IO[bytes]"


def to_json(obj: object) -> str:
    """The JSON text of an object: of JSON values, arrays, and objects of registered types, nested at will.

    Raises:
        FormatError: If something in it has no saved form.
    """
    from trtops.json.text import TextWriter  # the formats are imported by those who save or load

    out = io.BytesIO()
    TextWriter(out).write(obj)
    return out.getvalue().decode("ascii")


def from_json(src: str | bytes) -> Any:
    """What :func:`to_json` was given.

    Raises:
        FormatError: If the text is not JSON, or something in it is damaged, unknown or refused.
    """
    from trtops.json.text import load_text

    data = src.encode("utf-8", "surrogatepass") if isinstance(src, str) else src
    return load_text(io.BytesIO(data), "the text")


def save_json(obj: object, dest: Source, description: str | None = None) -> None:
    """Save an object to a file.

    Args:
        obj: JSON values, arrays, and objects of registered types, nested at will. Arrays are read as they are written:
            less than 64 MB of memory is used beside them.
        dest: A path, replaced when the file is complete: an archive if it ends in ``.npz``, else JSON. Or an open file,
            which gets JSON.
        description: What it is, for the log.

    Raises:
        FormatError: If something in it has no saved form; the path is left as it was.
    """
    if not isinstance(dest, (str, os.PathLike)):
        _write_open_file(obj, dest)
        return
    from trtops.json.archive import ArchiveWriter
    from trtops.json.text import TextWriter

    _log_debug(f"Saving {description or 'an object'} to {os.fspath(dest)}")
    with open_atomically(dest) as file:
        if Path(dest).suffix == ".npz":
            ArchiveWriter(file).write(obj)
        else:
            TextWriter(file).write(obj)


def load_json(src: Source, description: str | None = None) -> Any:
    """Load what :func:`save_json`, or Polygraphy, saved.

    Args:
        src: A path, or an open file at its beginning. Which of the two formats it is shows in its first bytes.
        description: What it is, for the log and for errors.

    Returns:
        The object. Its arrays are new ones in host memory and may be changed.

    Raises:
        FormatError: If the file is cut short, not one of the two formats, of a newer version, or holds something
            unknown or refused.
        FileNotFoundError: If there is no such file.
    """
    if isinstance(src, (str, os.PathLike)):
        name = f"{description + ' ' if description else ''}{os.fspath(src)}"
        _log_debug(f"Loading {name}")
        with open(src, "rb") as file:
            return _load_file(file, name)
    held = src.read()
    if isinstance(held, str):
        return from_json(held)
    return _load_file(io.BytesIO(held), description or "the file")


def add_json_methods(description: str | None = None) -> Callable[[type[T]], type[T]]:
    """Decorate a registered type so that it has ``to_json``, ``from_json``, ``save`` and ``load``.

    Args:
        description: What its objects are, for the log and for errors.
    """

    def decorate(cls: type[T]) -> type[T]:
        def from_text(src: str) -> T:
            """Read what ``to_json`` wrote; FormatError if it is something else."""
            return _expect_kind(cls, from_json(src), "the text")

        def save(self: T, dest: Source) -> None:
            """Save to a path (``.npz``: the fast format) or an open file."""
            save_json(self, dest, description)

        def load(src: Source) -> T:
            """Load what ``save`` wrote; FormatError if it is something else."""
            return _expect_kind(cls, load_json(src, description), str(src))

        for name, function in [
            ("to_json", to_json),
            ("from_json", staticmethod(from_text)),
            ("save", save),
            ("load", staticmethod(load)),
        ]:
            setattr(cls, name, function)
        return cls

    return decorate


def _expect_kind(kind: type[T], obj: object, name: str) -> T:
    if not isinstance(obj, kind):
        raise errors.FormatError(f"{name} holds a {type(obj).__name__}; expected {kind.__name__}.")
    return obj


def _log_debug(message: str) -> None:
    import logging

    logging.getLogger(__name__).debug(message)


def _write_open_file(obj: object, file: Any) -> None:
    if isinstance(file, (io.RawIOBase, io.BufferedIOBase)):
        from trtops.json.text import TextWriter

        TextWriter(cast("IO[bytes]", file)).write(obj)
    else:
        write_open_file(file, to_json(obj).encode())


def _load_file(file: IO[bytes], name: str) -> Any:
    from trtops.json.archive import load_archive
    from trtops.json.text import load_text

    start = file.read(4)
    file.seek(0)
    if start[:2] == b"PK":
        return load_archive(file, name)
    return load_text(file, name)


known_as(__name__, "serde")
