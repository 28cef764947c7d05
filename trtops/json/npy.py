"""Arrays as ``.npy`` files: written in blocks, read without trust in what their headers claim."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from trtops import errors

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = "np.ndarray[Any, Any]"

BLOCK = 3 << 18
"""Bytes that are written at a time: whole base64 groups."""

_HEADER_LIMIT = 1 << 16


def header_of(array: Array) -> bytes:
    """The beginning of an array's ``.npy`` file."""
    import numpy as np

    if array.dtype.hasobject:
        raise errors.FormatError(
            f"An array of Python objects (shape {array.shape}) cannot be saved. Give its values one dtype first, "
            "for example with .astype(str)."
        )
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, np.lib.format.header_data_from_array_1_0(array))
    return out.getvalue()


def file_blocks(array: Array) -> Iterator[bytes | memoryview]:
    """An array as a ``.npy`` file, in blocks of whole base64 groups (the last one excepted)."""
    header = header_of(array)
    body = body_blocks(array)
    rest = header
    for block in body:
        joined = len(rest) and (-len(rest)) % 3
        head, tail = block[:joined], block[joined:]
        if rest:
            yield rest + bytes(head)
        whole = len(tail) - len(tail) % 3
        if whole:
            yield tail[:whole]
        rest = bytes(tail[whole:])
    if rest:
        yield rest


def body_blocks(array: Array) -> Iterator[memoryview]:
    """The array's bytes in the order that its header announces."""
    import numpy as np

    if not array.size:
        return
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        array = array.T
    if array.flags.c_contiguous:
        data = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(data), BLOCK):
            yield data[start : start + BLOCK]
        return
    step = max(1, BLOCK // array.itemsize)
    flat = array.flat
    for start in range(0, array.size, step):
        yield np.ascontiguousarray(flat[start : start + step]).view(np.uint8).data


class ByteReader(Protocol):
    """Where a ``.npy`` file is read from."""

    def read(self, count: int, /) -> bytes:
        """So many bytes, or what is left."""
        ...

    def readinto(self, target: Any, /) -> int | None:
        """Fill a buffer, at least in part; nothing at the end."""
        ...


def read_npy(file: ByteReader, size: int) -> Array:
    """Read a ``.npy`` file of ``size`` bytes. Allocates no more than that, whatever the header claims."""
    import numpy as np

    shape, fortran, dtype, header_size = _read_npy_header(file)
    count = 1
    for dim in shape:
        count *= dim
    if header_size + count * dtype.itemsize != size:
        raise errors.FormatError(
            f"an array of shape {shape} and dtype {dtype} needs {count * dtype.itemsize} bytes; "
            f"{max(0, size - header_size)} are there"
        )
    array: Array = np.empty(shape, dtype, order="F" if fortran else "C")
    if array.nbytes:
        target = (array.T if fortran else array).reshape(-1).view(np.uint8).data
        done = 0
        while done < len(target):
            got = file.readinto(target[done : done + (1 << 24)])
            if not got:
                raise errors.FormatError(f"an array of shape {shape} and dtype {dtype} is cut short")
            done += got
    return array


def _read_npy_header(file: ByteReader) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    import ast

    import numpy as np

    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY":
        raise errors.FormatError("an array does not start like a .npy file")
    if magic[6] not in (1, 2, 3):
        raise errors.FormatError(f"an array has .npy version {magic[6]}; versions 1 to 3 are known")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(file.read(width), "little")
    if length > _HEADER_LIMIT:
        raise errors.FormatError(f"an array has a header of {length} bytes")
    text = file.read(length)
    try:
        header = ast.literal_eval(text.decode("latin-1" if magic[6] < 3 else "utf-8").strip())
        shape, fortran = tuple(header["shape"]), bool(header["fortran_order"])
        dtype = np.lib.format.descr_to_dtype(header["descr"])
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as exc:
        raise errors.FormatError(f"an array has a damaged header: {exc}") from None
    if dtype.kind == "V":
        raise errors.FormatError(f"an array has dtype {dtype}; only numbers, booleans and strings are read")
    if dtype.hasobject:
        raise errors.FormatError("an array holds Python objects; reading them could run code, so it is refused")
    if len(text) < length or not all(isinstance(d, int) and not isinstance(d, bool) and d >= 0 for d in shape):
        raise errors.FormatError("an array has a damaged header")
    if len(shape) > 32:
        raise errors.FormatError(f"an array has {len(shape)} dimensions")
    return shape, fortran, dtype, 8 + width + length
