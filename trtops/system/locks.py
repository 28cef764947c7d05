"""Locks between processes. The kernel releases a lock when its holder ends, however it ends.

A lock file lies next to what it guards: in the store of a campaign or, for devices of the machine, in a folder of this
user that is the same for all processes regardless of ``TMPDIR``. Lock files stay where they are: removing one would let
two processes hold the same lock.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from trtops import errors

_PLACE = Path("/tmp")


def machine_folder() -> Path:
    """The folder of this user's locks on devices; created if missing.

    Raises ConfigError if another user owns it or can write to it, and could therefore redirect locks.
    """
    folder = _PLACE / f"trtops-locks-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise errors.ConfigError(
            f"{folder} must be a folder that only this user can write to, since locks are kept there. Remove it."
        )
    return folder


@contextlib.contextmanager
def held(name: str, folder: Path | None = None) -> Iterator[bool]:
    """Try to hold a lock for the duration of a block; yields False if another thread or process holds it.

    Args:
        name: Name of the lock; any text.
        folder: Folder of the lock file, created if missing; :func:`machine_folder` by default.

    Raises ConfigError if the lock file cannot be created, or is a link.
    """
    import filelock  # 30 ms, which most commands do not need

    folder = machine_folder() if folder is None else folder
    path = folder / "".join(c if c.isalnum() or c == "-" else "_" for c in name)
    lock = filelock.FileLock(path, mode=0o664, blocking=False, thread_local=False)  # a store may belong to a group
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
        lock.release()


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a lock for the duration of a block; waits until it is free. The file is created with its folder.

    Raises OSError if the file cannot be created, or is a link.
    """
    import filelock

    Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path, thread_local=False):
        yield
