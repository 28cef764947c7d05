"""Prefect's embedded database, made once under a lock, and the server that flows start over it.

Several processes that start on an empty ``PREFECT_HOME`` at the same moment race to migrate the same file and fail.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from prefect.settings import PREFECT_API_URL, PREFECT_HOME

from trtops import errors
from trtops.locks import locked
from trtops.processes import SERVED_BY, mark, start_server_watch

_READY = ".trtops-ready"


def ensure_prefect_home() -> None:
    """Make Prefect's database if flows will run against the embedded server and it does not exist yet.

    The server itself starts with the first flow, and ends with this process.

    Raises:
        TrackingError: If Prefect cannot make it.
    """
    if PREFECT_API_URL.value():
        return
    from trtops.flows.server import IsolatedServer  # a second; Prefect imports the same when it starts its server

    os.environ[SERVED_BY] = mark()
    _watch_of(os.getpid())
    IsolatedServer()
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
            cwd=home,  # where it looks for modules first: nobody else writes there
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
    return start_server_watch()
