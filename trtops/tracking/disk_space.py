"""Whether a disk has space for the artifacts of a run, checked before the work that makes them."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import humanize

from trtops import errors

_UNKNOWN = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EFBIG)
"""Errors of file systems that cannot reserve space, or of a limit on single files: space may be there."""


def check_space(folder: Path, size: int) -> None:
    """Check that ``size`` bytes can be written below a folder: free space, quota and permission.

    The space is reserved for a moment, since a quota shows only when it is reached.

    Args:
        folder: The folder; it need not exist.
        size: Bytes.

    Raises:
        NoRoomError: If they cannot be written.
    """
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        found = os.statvfs(place)
        free = found.f_bavail * found.f_frsize
        if free >= size:
            with tempfile.TemporaryFile(dir=place) as file:
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
            return
        why = f"{humanize.naturalsize(free)} are free"
    except OSError as exc:
        if exc.errno in _UNKNOWN:
            return
        why = exc.strerror or str(exc)
    raise errors.NoRoomError(
        f"{place} has no space for the {humanize.naturalsize(size)} that this run may need: {why}. "
        "Free some space, or set TRTOPS_HOME to another folder."
    )
