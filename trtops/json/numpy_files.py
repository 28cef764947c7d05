"""Arrays as ``.npy`` files and ``.npz`` archives. Claimed sizes are checked before memory is allocated."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from trtops import errors
from trtops.system.limits import check_memory

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = "np.ndarray[Any, Any]"

# Of zipfile for damaged archives, and of the JSON parser for their index.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError)

# An archive may unpack to this many times its size, and to 256 MiB however small it is: a compressed file of zeros, a
# thousand times smaller than its content, could use up all memory.
_MAX_RATIO = 100
_ALWAYS_ALLOWED = 1 << 28


def write_npy(file: Any, array: Array) -> None:
    """Write an array as a ``.npy`` file, in blocks of 16 MiB, to an object with ``write``."""
    import numpy as np

    if array.dtype.hasobject:
        raise errors.FormatError(
            f"An array of Python objects (shape {array.shape}) cannot be saved. Convert its values to one dtype first, "
            "for example with .astype(str)."
        )
    np.lib.format.write_array(file, array, allow_pickle=False)


def read_npy(file: IO[bytes], size: int) -> Array:
    """Read a ``.npy`` file of ``size`` bytes. Allocates at most ``size`` bytes, whatever the header claims."""
    import numpy as np

    start = file.read(_HEADER_START)
    header = start + file.read(min(_header_bytes(start), size) - len(start))
    shape, is_fortran, dtype = _parse_header(header)
    array: Array = np.empty(_checked_count(shape, dtype, size - len(header)), dtype)
    if array.nbytes:
        left = array.view(np.uint8).data
        while left and (length := file.readinto(left[:_READ_BLOCK])):  # type: ignore[attr-defined]
            left = left[length:]
        if left:
            raise errors.FormatError(f"an array of shape {shape} and dtype {dtype} is cut short")
    return _shaped(array, shape, is_fortran)


def array_of_npy(data: bytes | Array) -> Array:
    """Return the array of a ``.npy`` file in memory: a copy of bytes, or a part of an array of them."""
    import numpy as np

    header = bytes(data[: _header_bytes(bytes(data[:_HEADER_START]))])
    shape, is_fortran, dtype = _parse_header(header)
    count = _checked_count(shape, dtype, len(data) - len(header))
    array: Array = np.frombuffer(data, dtype, count, len(header)) if count * dtype.itemsize else np.empty(count, dtype)
    return _shaped(array.copy() if isinstance(data, bytes) else array, shape, is_fortran)


_READ_BLOCK = 1 << 20  # archives read a block into memory of their own first
_HEADER_START = 12  # the mark, the version, and the length of what follows: of two bytes, or four


def _header_bytes(start: bytes) -> int:
    """Return the length of a header, from its first bytes."""
    if start[6:7] == b"\x01":
        return 10 + int.from_bytes(start[8:10], "little")
    return _HEADER_START + int.from_bytes(start[8:12], "little")


# Numpy compiles each header as Python code, which takes longer than reading a small array.
@functools.lru_cache(maxsize=256)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and dtype; FormatError if the header is damaged, or its arrays are not read."""
    import numpy as np

    file = io.BytesIO(header)
    try:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise errors.FormatError(f"an array has .npy version {version[0]}; expected 1 or 2")
        shape, is_fortran, dtype = readers[version](file)
    # Any error of the tokenizer and the parser may come.
    except Exception as exc:
        raise errors.FormatError(f"an array has a damaged header: {exc}") from None
    if dtype.hasobject:
        raise errors.FormatError("an array holds Python objects; reading them could run code, so it is refused")
    if dtype.kind == "V":
        raise errors.FormatError(f"an array has dtype {dtype}; only numbers, booleans and strings are read")
    return shape, is_fortran, dtype


def _checked_count(shape: tuple[int, ...], dtype: np.dtype[Any], available: int) -> int:
    """Return the number of elements; FormatError if they are not as many bytes as there are."""
    # Python's integers do not overflow, as numpy's would for a shape that a file only claims to have.
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != available:
        raise errors.FormatError(
            f"an array of shape {shape} and dtype {dtype} needs {count * dtype.itemsize} bytes; {max(0, available)} "
            "are there"
        )
    return count


def _shaped(array: Array, shape: tuple[int, ...], is_fortran: bool) -> Array:
    return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Read the array of an archive's member."""
    with archive.open(member) as content:
        return read_npy(content, member.file_size)


def load_numpy(path: str | os.PathLike[str]) -> Array | dict[str, Array]:
    """Return the array of an ``.npy`` file, or those of an ``.npz`` file by name. Nothing pickled is read.

    FormatError if the file is damaged or unpacks to far more than its size; InputError if it needs too much memory.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file, damage_reported(f"{path} cannot be read as {Path(path).suffix or 'an array'}"):
        if not zipfile.is_zipfile(file):
            file.seek(0)
            return read_npy(file, size)
        with zipfile.ZipFile(file) as archive:
            total = sum(member.file_size for member in archive.infolist())
            check_memory(f"{path}, of {size} bytes,", total, allowance=size)
            if total > max(_ALWAYS_ALLOWED, _MAX_RATIO * size):
                raise errors.FormatError(
                    f"it has {size} bytes and unpacks to {total}, more than {_MAX_RATIO} times its size. Save it "
                    "uncompressed, with numpy.savez"
                )
            return {m.filename.removesuffix(".npy"): read_member(archive, m) for m in archive.infolist()}


def archive_names(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the files in an archive; empty if the file is not an archive, or is missing."""
    if not zipfile.is_zipfile(path):
        return []
    with damage_reported(f"{path} cannot be read as an archive"), zipfile.ZipFile(path) as archive:
        return archive.namelist()


def array_of_archive(data: bytes) -> Array:
    """Return the first array of an archive in memory."""
    with damage_reported("an array is a damaged archive"), zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if not members:
            raise errors.FormatError("it is empty")
        if members[0].file_size > _MAX_RATIO * len(data) + (1 << 20):
            raise errors.FormatError("it unpacks to far more than its size")
        return read_member(archive, members[0])


@contextlib.contextmanager
def damage_reported(subject: str) -> Iterator[None]:
    """Raise FormatError, beginning with ``subject``, for damaged files."""
    try:
        yield
    except (*_ZIP_ERRORS, errors.FormatError) as exc:
        if isinstance(exc, errors.InputError):
            raise
        raise errors.FormatError(f"{subject}: {exc}.") from None
