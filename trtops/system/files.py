"""Write files atomically: readers see either the complete new content or the old one."""

import contextlib
import errno
import getpass
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

# Windows has neither, and opens no pipe by a path.
_CLOEXEC, _NONBLOCK = getattr(os, "O_CLOEXEC", 0), getattr(os, "O_NONBLOCK", 0)


def user_id() -> str:
    """Return the user of this process, for names of files: a number, or on Windows the user's name."""
    return str(os.getuid()) if hasattr(os, "getuid") else getpass.getuser()


def is_private(status: os.stat_result) -> bool:
    """True if only this user owns a file and can write to it; on Windows, where rights are not of this kind, too."""
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def read_regular(path: str | os.PathLike[str], at_most: int | None = None) -> bytes:
    """The content of a regular file; OSError for pipes and devices (they may never end), and for more bytes."""
    # A pipe may have no writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a file", os.fspath(path))
        if at_most is not None and status.st_size > at_most:
            large = f"it has {status.st_size / (1 << 30):.3g} GiB; expected at most {at_most / (1 << 30):.3g}"
            raise OSError(errno.EFBIG, large, os.fspath(path))
        return file.read()


def read_open_file(file: Any) -> Any:
    """Read an open file from its start, as Polygraphy does, and keep its position; other streams from theirs."""
    if not getattr(file, "seekable", bool)():
        return file.read()
    position = file.tell()
    file.seek(0)
    content = file.read()
    file.seek(position)
    return content


def write_open_file(file: Any, data: Any) -> None:
    """Write bytes to any object with ``write``, as text if it is a text file; it stays open."""
    try:
        file.write(data)
    except TypeError:  # a text file, or a wrapper around one, which its class does not show
        file.write(bytes(data).decode("utf-8", "surrogateescape"))
    if hasattr(file, "flush"):
        file.flush()


def sync_to_disk(path: str | os.PathLike[str]) -> None:
    """Flush a file, or the names in a folder, to disk, to survive a power failure."""
    if os.name == "nt" and os.path.isdir(path):  # which cannot be opened there
        return
    file = os.open(path, os.O_RDONLY | _CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a new file to replace ``path`` when the block ends without an error; see :func:`replaced_together`."""
    with replaced_together(path) as open_part, open_part(path) as file:
        yield file


@contextlib.contextmanager
def replaced_together(main: str | os.PathLike[str]) -> Iterator[Callable[[str | os.PathLike[str]], IO[bytes]]]:
    """Write a file and the files it refers to; all appear when the block ends without an error, or none.

    Yields a function that opens a new binary file, which will replace the one of that path; a missing folder is
    created, a link is followed, and devices and pipes are written directly. A process killed meanwhile leaves no main
    file, or one with matching files. ``main`` is the file that refers to the others. Raises OSError if a file cannot be
    written; the error names ``main``.
    """
    parts: dict[Path, Path] = {}

    def open_part(path: str | os.PathLike[str]) -> IO[bytes]:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file() and not target.is_dir():
            return open(target, "wb")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = parts[target] = target.with_name(f".{target.name[:100]}.{os.urandom(6).hex()}.part")
        return open(part, "xb")

    try:
        yield open_part
        if len(parts) > 1:
            for part in parts.values():
                sync_to_disk(part)
            # The old main file goes before any other file is replaced, and the new one appears last.
            Path(os.path.realpath(main)).unlink(missing_ok=True)
        for target, part in sorted(parts.items(), key=lambda pair: pair[0] == Path(os.path.realpath(main))):
            part.replace(target)
    except OSError as exc:
        # The name of a temporary file means nothing to the user.
        if exc.errno is not None and (exc.filename is None or Path(exc.filename) in parts.values()):
            raise OSError(exc.errno, exc.strerror, str(main)) from exc
        raise
    finally:
        for part in parts.values():
            with contextlib.suppress(OSError):  # a read-only file system; the first error counts
                part.unlink()
