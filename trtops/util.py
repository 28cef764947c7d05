"""Helpers by the names of ``polygraphy.util``, for scripts; trtops itself uses none of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from math import prod as volume
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

from trtops.func import invoke_if_callable
from trtops.lazy import known_as
from trtops.logger import G_LOGGER
from trtops.metadata import DEFAULT_SHAPE_VALUE
from trtops.metadata import is_dynamic as is_dimension_dynamic
from trtops.system.files import open_atomically, read_open_file, write_open_file
from trtops.system.locks import locked

__all__ = [
    "LockFile", "NamedTemporaryFile", "check_called_by", "default", "invoke_if_callable", "is_dimension_dynamic",
    "is_shape_dynamic", "load_file", "override_dynamic_shape", "save_file", "unique_list", "volume",
]  # fmt: skip

T = TypeVar("T")
known_as(__name__, "util")


def default(value: T | None, default: T) -> T:
    """Return a value, or ``default`` if it is None."""
    return default if value is None else value


def check_called_by(expected_caller_name: str) -> Callable[[T], T]:
    """Return a decorator without effect; scripts use it on methods called by trtops."""
    return lambda function: function


def unique_list(sequence: Iterable[T]) -> list[T]:
    """Return each element once, in order."""
    return list(dict.fromkeys(sequence))


def is_shape_dynamic(shape: Iterable[Any]) -> bool:
    """Whether a dimension has no fixed size."""
    return any(map(is_dimension_dynamic, shape))


def override_dynamic_shape(shape: Iterable[Any], default_shape_value: int | None = None) -> list[int]:
    """Return a shape with a size for each dynamic dimension (default: 1)."""
    size = default(default_shape_value, DEFAULT_SHAPE_VALUE)
    return [size if is_dimension_dynamic(dim) else dim for dim in shape]


def load_file(src: Any, mode: str = "rb", description: str | None = None) -> Any:
    """Return the content of a file, given by its path or open; an open file is read from its start.

    The log names a path by its ``description``.
    """
    if not isinstance(src, (str, os.PathLike)):
        return read_open_file(src)
    if description is not None:
        G_LOGGER.info(f"Loading {description} from {src}")
    with open(src, mode) as file:
        return file.read()


def save_file(contents: Any, dest: Any, mode: str = "wb", description: str | None = None) -> Any:
    """Write bytes or text to an open file, or replace the file of a path and make its folder; returns ``dest``.

    The log names a path by its ``description``. Text or bytes are written as they are, whatever ``mode`` is.
    """
    if not isinstance(dest, (str, os.PathLike)):
        write_open_file(dest, contents)
        return dest
    if description is not None:
        G_LOGGER.info(f"Saving {description} to {dest}")
    with open_atomically(dest) as file:
        file.write(contents.encode() if isinstance(contents, str) else contents)
    return dest


def LockFile(path: Any) -> contextlib.AbstractContextManager[None]:
    """Hold ``<path>.lock`` while the block runs; open files need none."""
    return locked(f"{path}.lock") if isinstance(path, (str, os.PathLike)) else contextlib.nullcontext()
