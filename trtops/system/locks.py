"""Locks between processes. The kernel releases a lock when its holder ends, however it ends.

Lock files stay where they are: removing one would let two processes hold the same lock.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trtops import errors
from trtops.system.files import is_private, user_id

# The same for all processes of this machine, regardless of TMPDIR; Windows has no such folder.
_LOCKS_PARENT = Path(tempfile.gettempdir() if os.name == "nt" else "/tmp")


def machine_folder() -> Path:
    """The folder of this user's locks on devices; created if missing.

    Raises ConfigError if another user owns it or can write to it, and could therefore redirect locks.
    """
    folder = _LOCKS_PARENT / f"trtops-locks-{user_id()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or not is_private(status):
        raise errors.ConfigError(
            f"{folder} must be a folder that only this user can write to, since locks are kept there. Remove it."
        )
    return folder


@contextlib.contextmanager
def held(name: str, folder: Path | None = None) -> Iterator[bool]:
    """Try to hold a lock for the duration of a block; yields False if another thread or process holds it.

    The lock file is in ``folder``, which is created if missing; by default in :func:`machine_folder`. ``name`` is any
    text. Raises ConfigError if the file cannot be created, or is a link.
    """
    import filelock  # 30 ms, which most commands do not need

    folder = machine_folder() if folder is None else folder
    path = folder / "".join(c if c.isalnum() or c == "-" else "_" for c in name)
    # A store may belong to a group. Not local to a thread, so that another thread does not get the lock again.
    lock = filelock.FileLock(path, mode=0o664, blocking=False, thread_local=False)
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
def locked(path: str | os.PathLike[str], seconds: float = -1) -> Iterator[None]:
    """Hold a lock for the duration of a block; waits until it is free. The file is created with its folder.

    Raises OSError if the file cannot be created, or is a link; TimeoutError after ``seconds``, unless negative.
    """
    import filelock

    Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path, seconds, thread_local=False):
        yield
