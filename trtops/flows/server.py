"""The server started by Prefect for flows without one: its database, its working folder, and its end."""

import functools
import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from filelock import FileLock
from prefect.settings import PREFECT_API_URL, PREFECT_HOME

from trtops import errors

log = logging.getLogger(__name__)

# Prefect ends its server only if the process of the flow exits normally. This server also ends when its process is
# killed: the kernel then closes the other end of a pipe.
_PROGRAM = """
import os, runpy, select, signal, sys, threading, time
def end_with_parent():
    poller = select.poll()
    poller.register({fd}, 0)
    poller.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
runpy.run_module("uvicorn", run_name="__main__", alter_sys=True)
"""


def ensure_prefect_home() -> None:
    """Prepare Prefect's own server if no other one is configured; it starts with the first flow.

    Raises TrackingError if Prefect cannot create its database.
    """
    if PREFECT_API_URL.value():
        return
    isolate_server()
    home = PREFECT_HOME.value()
    ready = home / ".trtops-ready"
    if ready.exists():
        return
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Processes that start on an empty folder at the same moment would all migrate the same file, and fail.
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
def isolate_server() -> None:
    """Let Prefect's server start in ``PREFECT_HOME``, and end with this process."""
    log.warning(
        "No Prefect server is configured, so each process of flows starts one, which may take a minute. "
        "Start one that stays: trtops team up"
    )
    from prefect.server.api import server  # takes a second, and only flows without a server need it

    def start(args: list[str], **options: Any) -> subprocess.Popen[Any]:
        theirs, _ = os.pipe()  # the other end stays open as long as this process lives
        command = [sys.executable, "-c", _PROGRAM.format(fd=theirs), *args[3:]]  # instead of `python -m uvicorn`
        # Prefect would start it in the working folder of the flow, where a `fastapi.py` next to a model would run.
        return subprocess.Popen(command, cwd=PREFECT_HOME.value(), pass_fds=(theirs,), **options)

    # The name `subprocess` in that module alone; os.chdir would change the folder for all threads.
    vars(server)["subprocess"] = SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)
