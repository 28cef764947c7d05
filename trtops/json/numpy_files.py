"""numpy's own files, ``.npy`` and ``.npz``, of anybody: what they claim is evaluated before anything is allocated."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from trtops import errors
from trtops.json.npy import read_npy
from trtops.limits import check_memory

if TYPE_CHECKING:
    from trtops.json.npy import Array

_USUAL_RATIO = 100
_ALWAYS_FINE = 1 << 28
"""Bytes that an archive may unpack to however small it is."""


def load_numpy(path: str | os.PathLike[str]) -> Array | dict[str, Array]:
    """The array of an ``.npy`` file, or those of an ``.npz`` file by name, in host memory. Nothing pickled is read.

    Raises:
        FormatError: If the file is damaged, holds Python objects, or unpacks to far more than it is.
        InputError: If it would take more memory than may be taken (:mod:`trtops.limits`).
        OSError: If it cannot be opened.
    """
    path = Path(path)
    size = path.stat().st_size
    try:
        with open(path, "rb") as file:
            if zipfile.is_zipfile(file):
                file.seek(0)
                return _load_members(file, path, size)
            file.seek(0)
            return read_npy(file, size)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as exc:
        if isinstance(exc, errors.InputError):
            raise
        raise errors.FormatError(
            f"{path} cannot be read as {path.suffix}: {exc}. Pickled arrays are refused."
        ) from None


def archive_names(path: str | os.PathLike[str]) -> list[str]:
    """The names of the files in an archive; none where the file is no archive, or is missing.

    Raises:
        FormatError: If the archive is damaged.
    """
    if not zipfile.is_zipfile(path):
        return []
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError) as exc:
        raise errors.FormatError(f"{path} cannot be read as an archive: {exc}.") from None


def _load_members(file: IO[bytes], path: Path, size: int) -> dict[str, Array]:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        check_memory(f"{path}, of {size} bytes,", total, own=size)
        if total > max(_ALWAYS_FINE, _USUAL_RATIO * size):
            raise errors.FormatError(
                f"it has {size} bytes, and unpacks to {total}: more than {_USUAL_RATIO} times as many. Save it uncompressed, by "
                "numpy.savez"
            )
        arrays = {}
        for member in members:
            with cast("zipfile.ZipExtFile", archive.open(member)) as content:
                arrays[member.filename.removesuffix(".npy")] = read_npy(content, member.file_size)
        return arrays
