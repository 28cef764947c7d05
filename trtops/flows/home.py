"""Prefect's embedded database, made once under a lock.

Several processes that start on an empty ``PREFECT_HOME`` at the same moment race to migrate the same file and fail.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from prefect.settings import PREFECT_API_URL, PREFECT_HOME

from trtops import errors
from trtops.files import locked
from trtops.processes import SERVED_BY, mark, start_watch

_READY = ".trtops-ready"


def ensure_prefect_home() -> None:
    """Make Prefect's database if flows will run against the embedded server and it does not exist yet.

    Raises:
        TrackingError: If Prefect cannot make it.
    """
    if PREFECT_API_URL.value():
        return
    os.environ[SERVED_BY] = mark()
    _watch_of(os.getpid())
    home = PREFECT_HOME.value()
    marker = home / _READY
    if marker.exists():
        return
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(home / ".lock"):
        if marker.exists():
            return
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise errors.TrackingError(
                f"Prefect could not make its database in {home}: {done.stderr.strip()[-500:]} "
                "Set PREFECT_HOME to a folder it can write to, or PREFECT_API_URL to a running server."
            )
        marker.touch()


@functools.cache
def _watch_of(pid: int) -> subprocess.Popen[bytes]:
    """What ends this process' Prefect server after it; Prefect does so only where the process ends in order."""
    return start_watch()
