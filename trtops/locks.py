"""Locks between processes: released when their holder ends, however it ends.

A lock lies with what it guards: in the store whose campaign it is for, or, for the machine's devices, in a folder of this user
at a place that is the same for all processes, whatever ``TMPDIR`` says.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from trtops import errors
from trtops.files import open_lock

_PLACE = Path("/tmp")


def machine_folder() -> Path:
    """The folder of this user's locks on what the machine has; made if missing.

    Raises:
        ConfigError: If it is somebody else's, who could take locks away or lead them elsewhere.
    """
    folder = _PLACE / f"trtops-locks-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise errors.ConfigError(
            f"{folder} is not a folder that only this user can write to, and locks are to lie there. Remove it."
        )
    return folder


@contextlib.contextmanager
def held(name: str, folder: Path | None = None) -> Iterator[bool]:
    """Try to hold a lock for the time of a block.

    Args:
        name: Names the lock; any text.
        folder: Where it lies, made if missing; :func:`machine_folder` unless given.

    Yields:
        Whether it is held; False if another holder has it, in this process or another one.

    Raises:
        ConfigError: If it cannot be made there, or is a link.
    """
    folder = machine_folder() if folder is None else folder
    path = folder / "".join(c if c.isalnum() or c == "-" else "_" for c in name)
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = open_lock(path)
        except OSError as exc:
            raise errors.ConfigError(f"The lock {path} cannot be used: {exc.strerror}.") from exc
        with file:
            if not _is_locked_by(file):
                yield False
                return
            if not _is_at(file, path):  # its last holder removed it after it was opened here
                continue
            try:
                yield True
            finally:
                path.unlink(missing_ok=True)
            return


def remove_stale(folder: Path | None = None) -> list[Path]:
    """Remove the files of locks whose holders were killed; returns which."""
    removed = []
    for path, file in _free_locks(folder):
        if _is_at(file, path):
            path.unlink()
            removed.append(path)
    return removed


def stale(folder: Path | None = None) -> list[Path]:
    """The files of locks whose holders were killed. They hold up nobody."""
    return [path for path, _ in _free_locks(folder)]


def _free_locks(folder: Path | None) -> Iterator[tuple[Path, IO[bytes]]]:
    """Files of locks that nobody holds, each open and locked while it is looked at."""
    folder = machine_folder() if folder is None else folder
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(OSError), open_lock(path) as file:
            if _is_locked_by(file):
                yield path, file


def _is_locked_by(file: IO[bytes]) -> bool:
    """Lock an open file, unless somebody else has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False
