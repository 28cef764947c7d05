"""Locks between the processes of this machine: gone with whoever held them, however it ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(name: str) -> Iterator[bool]:
    """Try to hold a lock for the time of a block.

    Args:
        name: Names the lock; any text.

    Yields:
        Whether it is held; False if another holder has it, in this process or another one of this user.
    """
    folder = Path(tempfile.gettempdir()) / f"trtops-locks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    plain = "".join(c if c.isalnum() or c == "-" else "_" for c in name)
    with open(folder / plain, "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
