"""Locks between processes. The system releases a lock when its holder ends, however it ends.

A lock file lies next to the thing that it protects: in the store of a campaign, or, for the devices of this machine, in one
folder per user whose place does not depend on ``TMPDIR``.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import filelock

from trtops import errors

_PLACE = Path("/tmp")


def machine_folder() -> Path:
    """The folder of this user's locks on the devices of this machine; made if missing.

    Raises:
        ConfigError: If another user owns it or can write to it, and could replace lock files.
    """
    folder = _PLACE / f"trtops-locks-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise errors.ConfigError(f"{folder} must be a folder that only this user can write to. Remove it.")
    return folder


@contextlib.contextmanager
def held(name: str, folder: Path | None = None) -> Iterator[bool]:
    """Try to hold a lock for the duration of a block.

    Args:
        name: Name of the lock; any text.
        folder: Folder of the lock file, made if missing; :func:`machine_folder` unless given.

    Yields:
        True if the lock was acquired; False if this or another process holds it.

    Raises:
        ConfigError: If the lock file cannot be made, or is a link.
    """
    folder = machine_folder() if folder is None else folder
    path = folder / "".join(c if c.isalnum() or c == "-" else "_" for c in name)
    # A moment of patience: the previous holder may be removing the file right now, and filelock then tries again.
    lock = filelock.FileLock(path, timeout=0.05, poll_interval=0.01, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        yield False
        return
    except OSError as exc:
        raise errors.ConfigError(f"The lock {path} cannot be used: {exc.strerror}.") from exc
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        lock.release()
