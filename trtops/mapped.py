"""Files used as bytes without being read: engines of several gigabytes, of which nobody needs a copy in memory.

What is mapped is a :class:`memoryview`, which does all that bytes do for whoever hashes, compares, slices or writes them.
Pages that were looked at stay in memory until they are forgotten (:func:`blocks`).
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

from trtops.processes import temporary_prefix

MOST_READ = 1 << 30
"""Bytes of a file above which it is mapped and not read."""

_BLOCK = 16 << 20


class _MappedFile(mmap.mmap):
    """A file's content, read only, and where the file is; one in a folder of its own goes with it."""

    path: Path
    owner: object = None

    def __new__(cls, path: Path, folder: Path | None = None) -> _MappedFile:
        with open(path, "rb") as file:
            mapped: _MappedFile = super().__new__(cls, file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped.path = path
        if folder is not None:
            weakref.finalize(mapped, shutil.rmtree, folder, ignore_errors=True)
        return mapped


def map_file(path: Path, owner: object = None) -> memoryview:
    """A file's content; the file stays the caller's, and must not be changed as long as this is used.

    Args:
        path: The file.
        owner: Whatever the file goes with; kept as long as the content.

    Raises:
        OSError: If it cannot be read, or is empty.
    """
    mapped = _MappedFile(path)
    mapped.owner = owner
    return memoryview(mapped)


def read_or_map(path: Path, owner: object = None) -> bytes | memoryview:
    """A file's content: read, or mapped from 1 GiB on; arguments and errors as for :func:`map_file`."""
    return map_file(path, owner) if path.stat().st_size > MOST_READ else path.read_bytes()


def kept(data: object) -> bytes | memoryview:
    """A copy of what a library holds in its own memory: as bytes, or from 1 GiB on in a temporary file that is mapped.

    Args:
        data: Anything with Python's buffer protocol.

    Raises:
        OSError: If the temporary folder cannot take it.
    """
    view = memoryview(data)  # type: ignore[arg-type]  # Buffer is not known to typing before Python 3.12
    if view.nbytes <= MOST_READ:
        return bytes(view)
    folder = Path(tempfile.mkdtemp(prefix=temporary_prefix("mapped")))
    try:
        target = folder / "content"
        with open(target, "wb") as file:
            for block in blocks(view.cast("B")):
                file.write(block)
        return memoryview(_MappedFile(target, folder))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def take_file(path: Path) -> memoryview:
    """A file's content, with the file moved away from where it is, and removed when nobody uses it any more.

    Raises:
        OSError: If it cannot be moved or read, or is empty.
    """
    folder = Path(tempfile.mkdtemp(prefix=temporary_prefix("mapped")))
    target = folder / path.name
    try:
        shutil.move(path, target)
        return memoryview(_MappedFile(target, folder))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def file_of(data: bytes | memoryview) -> Path | None:
    """The file that bytes are mapped from; None for bytes in memory."""
    source = data.obj if isinstance(data, memoryview) else None
    return source.path if isinstance(source, _MappedFile) else None


def blocks(data: bytes | bytearray | memoryview) -> Iterator[memoryview]:
    """Bytes block by block; what is mapped from a file is in memory no longer than its block."""
    view = memoryview(data)
    source = view.obj
    for start in range(0, len(view), _BLOCK):
        with view[start : start + _BLOCK] as block:
            yield block
        if isinstance(source, _MappedFile) and hasattr(source, "madvise"):
            source.madvise(mmap.MADV_DONTNEED, start, min(_BLOCK, len(view) - start))


class Handed:
    """What stands for a mapped file on its way to another process on this machine: a second link to it.

    The link is the receiver's, and goes with what it maps. Where nobody receives it, it is in a temporary folder that bears
    the sender's mark, as all that dead processes leave.
    """

    def __init__(self, data: memoryview) -> None:
        """Link to the file that is mapped.

        Raises:
            OSError: If that cannot be done.
        """
        path = file_of(data)
        assert path is not None
        self.folder = tempfile.mkdtemp(prefix=temporary_prefix("handed"), dir=path.parent.parent)
        self.path = os.path.join(self.folder, path.name)
        os.link(path, self.path)

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return _received, (self.path, self.folder)


def _received(path: str, folder: str) -> memoryview:
    taken = take_file(Path(path))  # into a folder that bears the receiver's mark: the sender may be gone before it
    os.rmdir(folder)
    return taken
