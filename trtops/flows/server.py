"""The server that Prefect starts for flows without one: its database, its working folder, and its end."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from filelock import FileLock
from prefect.settings import PREFECT_API_URL, PREFECT_HOME

from trtops import errors
from trtops.system.processes import SERVED_BY, mark, start_server_watch


def ensure_prefect_home() -> None:
    """Prepare Prefect's own server if no other one is configured; it starts with the first flow.

    Its database is created once, under a lock: processes that start on an empty ``PREFECT_HOME`` at the same moment
    would all migrate the same file, and fail.

    Raises:
        TrackingError: If Prefect cannot create the database.
    """
    if PREFECT_API_URL.value():
        return
    os.environ[SERVED_BY] = mark()
    _watch_of(os.getpid())
    _use_own_folder()
    home = PREFECT_HOME.value()
    ready = home / ".trtops-ready"
    if ready.exists():
        return
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(home / ".lock"):
        if ready.exists():
            return
        command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
        # It looks for modules in its working folder first, where only this user can write.
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
        if done.returncode:
            raise errors.TrackingError(
                f"Prefect could not create its database in {home}: {done.stderr.strip()[-500:]} "
                "Set PREFECT_HOME to a folder that it can write to, or PREFECT_API_URL to a running server."
            )
        ready.touch()


@functools.cache
def _watch_of(pid: int) -> subprocess.Popen[bytes]:
    """The process that ends Prefect's server after this one; Prefect does so only at a regular end of the process."""
    return start_server_watch()


@functools.cache
def _use_own_folder() -> None:
    """Let Prefect's server start in ``PREFECT_HOME``.

    Prefect starts it in the working folder of the flow, where it looks for modules: a ``fastapi.py`` next to a model
    would run. Prefect has one server object per process, the first that is created.
    """
    from prefect.server.api import server  # takes a second, and only flows without a server need it

    class IsolatedServer(server.SubprocessASGIServer):
        def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
            starting = functools.partial(subprocess.Popen, cwd=PREFECT_HOME.value())
            # Replaces the name `subprocess` in that module; os.chdir would change the folder for all threads.
            vars(server)["subprocess"] = SimpleNamespace(Popen=starting, TimeoutExpired=subprocess.TimeoutExpired)
            try:
                return super()._run_uvicorn_command()
            finally:
                vars(server)["subprocess"] = subprocess

    IsolatedServer()
