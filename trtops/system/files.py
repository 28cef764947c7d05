"""Write files so that readers see either the complete new content or the old one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any


def write_open_file(file: Any, data: Any) -> None:
    """Write bytes to any object with ``write``, as text if it is a text file; it stays open."""
    try:
        file.write(data)
    except TypeError:  # a text file, or a wrapper around one, which its class does not show
        file.write(bytes(data).decode("utf-8", "surrogateescape"))
    if hasattr(file, "flush"):
        file.flush()


@contextlib.contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a new file that replaces ``path`` when the block ends without an error.

    The folder is created if missing. A link is followed. Devices and pipes are written directly. Raises OSError if the
    file cannot be written; the error names ``path``.
    """
    target = Path(os.path.realpath(path))
    part = _part_of(target)
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            with open(target, "wb") as device:
                yield device
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        # A file without a name (O_TMPFILE in open(2)), so that a killed process leaves nothing behind. Some file
        # systems do not support it.
        try:
            descriptor = os.open(part.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except (OSError, AttributeError):
            descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            with open(os.dup(descriptor), "wb") as file:  # a duplicate, since the caller may close it
                yield file
            if not part.exists():
                # With a folder given, Python calls linkat(2), which follows the link in /proc; link(2) would not.
                os.link(f"/proc/self/fd/{descriptor}", part, src_dir_fd=descriptor, follow_symlinks=True)
        finally:
            os.close(descriptor)
        part.replace(target)
    except BaseException as exc:
        part.unlink(missing_ok=True)
        if isinstance(exc, OSError) and exc.errno is not None and str(exc.filename) in ("None", str(part)):
            raise OSError(exc.errno, exc.strerror, str(path)) from exc
        raise


def _part_of(target: Path) -> Path:
    return target.with_name(f".{target.name[:100]}.{os.urandom(6).hex()}.part")


def sync_to_disk(path: str | os.PathLike[str]) -> None:
    """Flush a file, or the names in a folder, to disk, so that they survive a power failure."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def replaced_together(main: str | os.PathLike[str]) -> Iterator[Callable[[str | os.PathLike[str]], IO[bytes]]]:
    """Write a file and the files it refers to; all appear when the block ends without an error, or none.

    Yields a function that opens a new binary file, which will replace the one of that path. A process killed meanwhile
    leaves no main file, or one with matching files. ``main`` is the file that refers to the others.
    """
    parts: dict[Path, Path] = {}
    main = Path(os.path.realpath(main))

    def open_part(path: str | os.PathLike[str]) -> IO[bytes]:
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        part = parts[target] = _part_of(target)
        try:
            return open(part, "xb")
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, str(path)) from exc

    try:
        yield open_part
        for part in parts.values():
            sync_to_disk(part)
        # The old main file goes before any other file is replaced, and the new one appears last.
        if len(parts) > 1:
            main.unlink(missing_ok=True)
        for target, part in sorted(parts.items(), key=lambda pair: pair[0] == main):
            part.replace(target)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
