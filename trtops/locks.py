"""Locks between the processes of this machine: released when their holder ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def held(name: str) -> Iterator[bool]:
    """Try to hold a lock for the time of a block.

    Args:
        name: Names the lock; any text.

    Yields:
        Whether it is held; False if another holder has it, in this process or another one of this user.
    """
    path = _folder() / "".join(c if c.isalnum() or c == "-" else "_" for c in name)
    while True:
        with open(path, "ab") as file:
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


def remove_stale() -> list[Path]:
    """Remove the files of locks whose holders were killed; returns which."""
    removed = []
    for path in _folder().iterdir():
        with contextlib.suppress(FileNotFoundError), open(path, "ab") as file:
            if _is_locked_by(file) and _is_at(file, path):
                path.unlink()
                removed.append(path)
    return removed


def stale() -> list[Path]:
    """The files of locks whose holders were killed. They hold up nobody."""
    found = []
    for path in _folder().iterdir():
        with contextlib.suppress(FileNotFoundError), open(path, "ab") as file:
            if _is_locked_by(file):
                found.append(path)
    return found


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"trtops-locks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _is_locked_by(file: IO[bytes]) -> bool:
    """Lock an open file, unless somebody else has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
