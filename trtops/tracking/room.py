"""Whether there is room for what a run is about to write, asked before the work is done that leads to it."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from trtops import errors

_SAYS_NOTHING = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EFBIG)
"""Errors of a file system that cannot reserve space, or of a limit on single files: they say nothing about room."""


def check_room(folder: Path, size: int) -> None:
    """Make sure that so many bytes can be written below a folder: room, quota and permission.

    The space is reserved for a moment, since a quota is known to nobody before it is reached.

    Args:
        folder: The folder; it need not exist.
        size: Bytes.

    Raises:
        NoRoomError: If they cannot be written.
    """
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
        if free >= size:
            with tempfile.TemporaryFile(dir=place) as file:
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
            return
        why = f"{_megabytes(free)} are free"
    except OSError as exc:
        if exc.errno in _SAYS_NOTHING:
            return
        why = exc.strerror or str(exc)
    raise errors.NoRoomError(
        f"{place} cannot take the {_megabytes(size)} that this run may need: {why}. "
        "Make room, or set TRTOPS_HOME to another folder."
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
