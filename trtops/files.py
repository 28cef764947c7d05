"""Files that appear whole or not at all, and locks that processes hold on them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any


def write_open_file(file: Any, data: Any) -> None:
    """Write bytes to an open file of anybody's, as text if it takes no bytes.

    Args:
        file: Anything with ``write``; stays open.
        data: Anything with the buffer protocol.
    """
    try:
        file.write(data)
    except TypeError:  # a file opened for text, or what wraps one, which no class tells
        file.write(bytes(data).decode("utf-8", "surrogateescape"))
    if hasattr(file, "flush"):
        file.flush()


@contextlib.contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file to be written, which appears under its name only when the block ends without an error.

    Until then it has no name at all, where the file system can do that (``O_TMPFILE`` in open(2)): a process that is killed
    leaves nothing behind.

    Args:
        path: The file; its folder is made if there is none, and a file that is there already is replaced, behind a link
            where the path is one. Devices and pipes are written to as they are.

    Yields:
        A new binary file in the same folder.

    Raises:
        OSError: If it cannot be written; it names ``path``.
    """
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name[:100]}.{os.urandom(6).hex()}.part")
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            with open(target, "wb") as device:
                yield device
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with _file_without_name(part) as (file, give_name):
            yield file
            give_name()
        part.replace(target)
    except BaseException as exc:
        part.unlink(missing_ok=True)
        if isinstance(exc, OSError) and exc.errno is not None and str(exc.filename) in ("None", str(part)):
            raise OSError(exc.errno, exc.strerror, str(path)) from exc
        raise


@contextlib.contextmanager
def _file_without_name(part: Path) -> Iterator[tuple[IO[bytes], Callable[[], None]]]:
    """A new file and what names it, closed afterwards; it is named from the beginning where there are no others."""
    try:
        descriptor = os.open(part.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except (OSError, AttributeError):  # a file system that cannot, or a system
        with open(part, "xb") as file:
            yield file, lambda: None
        return
    try:
        with open(os.dup(descriptor), "wb") as file:  # whoever writes may close its own
            yield file, lambda: _name_file(file, descriptor, part)
    finally:
        os.close(descriptor)


def _name_file(file: IO[bytes], descriptor: int, part: Path) -> None:
    if not file.closed:
        file.flush()
    try:
        os.link(f"/proc/self/fd/{descriptor}", part, follow_symlinks=True)
    except OSError:  # no /proc, or links are not allowed
        import shutil  # seldom needed

        os.lseek(descriptor, 0, os.SEEK_SET)
        with open(os.dup(descriptor), "rb") as source, open(part, "xb") as copy:
            shutil.copyfileobj(source, copy)


def sync_to_disk(path: str | os.PathLike[str]) -> None:
    """Wait until the disk holds a file, or the names in a folder, so that they are there after the power was lost.

    Raises:
        OSError: If there is none, or the disk fails.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class FilesTogether:
    """Files that belong together: the first is of no use with any but its own others.

    They are written beside their places, and put there at the end of a block (:func:`replaced_together`).
    """

    def __init__(self) -> None:
        self._parts: dict[Path, Path] = {}

    def open(self, path: str | os.PathLike[str]) -> IO[bytes]:
        """A new binary file that will be at this path; its folder is made if there is none."""
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name[:100]}.{os.urandom(6).hex()}.part")
        self._parts[target] = part
        try:
            return open(part, "xb")
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, str(path)) from exc

    def put(self, main: str | os.PathLike[str]) -> None:
        """Put all in their places: one that is killed here leaves no main file, or the new one with all that is its own."""
        main = Path(os.path.realpath(main))
        for part in self._parts.values():
            sync_to_disk(part)
        if len(self._parts) > 1:
            main.unlink(missing_ok=True)
        for target, part in sorted(self._parts.items(), key=lambda pair: pair[0] == main):
            part.replace(target)

    def discard(self) -> None:
        """Remove what was not put in its place."""
        for part in self._parts.values():
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def replaced_together(main: str | os.PathLike[str]) -> Iterator[FilesTogether]:
    """Write a file and others that it refers to; all appear when the block ends without an error, or none.

    The old main file goes before any of the others is replaced: at no moment does it stand beside those of the new one.

    Args:
        main: The file that refers to the others.

    Raises:
        OSError: If one cannot be written.
    """
    files = FilesTogether()
    try:
        yield files
        files.put(main)
    finally:
        files.discard()


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a lock for the duration of a block, after waiting for its present holder.

    Args:
        path: The lock file; it and its folder are made if missing, and it stays. The system releases the lock when the
            process ends, however it ends.

    Raises:
        OSError: If the file cannot be made, or is a link.
    """
    import filelock  # not needed by most commands

    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with filelock.FileLock(path, thread_local=False):
        yield
