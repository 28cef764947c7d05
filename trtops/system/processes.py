"""Find out which processes are alive, and clean up what dead processes left behind.

Temporary folders carry the mark of their process in their name. Child processes carry it in their environment
(:data:`STARTED_BY`). A mark consists of the process id, the start time in seconds (process ids are reused) and the pid
namespace (containers count for themselves).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

STARTED_BY = "TRTOPS_PARENT"
"""Environment variable that holds the mark of the parent. Such a process must not outlive its parent."""

SERVED_BY = "TRTOPS_FLOW"
"""The same for the server that Prefect starts for a flow. Other children of the flow inherit it and are left alone."""

_SECRET = "TRTOPS_SECRET"
_PREFECT_SERVER = "prefect.server.api.server:create_app"
_TERMINATE_SECONDS = 10.0
_POLL_SECONDS = 0.2
# psutil derives start times from the boot time, which changes by a second when the clock is adjusted.
_CLOCK_SECONDS = 2
_MARKED = re.compile(r"trtops\.[a-z]+\.(\d+-\d+-\d+)\.\w+(\.\w+)?")

# psutil takes 20 ms to import, and most commands only need a name for a temporary folder.


def started_at(pid: int) -> int | None:
    """The start time of a process in seconds since the epoch; None if there is no such process."""
    import psutil

    try:
        return int(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def is_alive(pid: int, started: int | None) -> bool:
    """True if a process with this id and start time is running; a zombie is not."""
    import psutil

    try:
        process = psutil.Process(pid)
        same = started is None or abs(process.create_time() - started) <= _CLOCK_SECONDS
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def pid_namespace() -> str:
    """The pid namespace of this process, such as ``pid:[4026531836]``; empty where the system has none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def mark() -> str:
    """The mark of the calling process: digits and dashes."""
    return f"{os.getpid()}-{started_at(os.getpid()) or 0}-{re.sub(r'[^0-9]', '', pid_namespace()) or 0}"


def is_gone(mark_of_process: str) -> bool:
    """True if the process of a mark has certainly ended; False for one in another container."""
    try:
        pid, started, namespace = map(int, mark_of_process.split("-"))
    except ValueError:
        return False
    return namespace == int(mark().rpartition("-")[2]) and not is_alive(pid, started)


def shared_secret() -> str:
    """32 random hexadecimal digits known to this process and its children, and to no file."""
    return os.environ.setdefault(_SECRET, secrets.token_hex(16))


def temporary_prefix(what: str) -> str:
    """The prefix for names of temporary files and folders of this process.

    Args:
        what: The content, in lower-case letters.
    """
    return f"trtops.{what}.{mark()}."


def left_folders() -> list[Path]:
    """Temporary files and folders of this user whose processes are gone."""
    found = []
    for path in Path(tempfile.gettempdir()).glob("trtops.*"):
        matched = _MARKED.fullmatch(path.name)
        with contextlib.suppress(OSError):
            if matched and path.lstat().st_uid == os.getuid() and is_gone(matched[1]):
                found.append(path)
    return sorted(found)


def remove_folder(path: Path) -> None:
    """Remove a temporary file or folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def left_processes() -> list[psutil.Process]:
    """Processes of this user that should have ended with a parent that is gone."""
    import psutil

    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [process for process in psutil.process_iter() if process.pid not in own and _is_left(process)]


def command_line(process: psutil.Process) -> str:
    """The command line of a process; empty if it cannot be read."""
    import psutil

    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def kill_left_process(process: psutil.Process) -> bool:
    """Kill a process from :func:`left_processes`; returns False if it has ended meanwhile."""
    import psutil

    # psutil compares start times, so that a new process with the same id is not killed.
    with contextlib.suppress(psutil.Error):
        if _is_left(process):
            process.kill()
            return True
    return False


def start_server_watch() -> subprocess.Popen[bytes]:
    """Start a process that ends the Prefect server of this process after it; see :data:`SERVED_BY`.

    Prefect ends its server only if the process exits normally.
    """
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from trtops.system.processes import end_server_after as e; e(sys.argv[1])",
            mark(),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path)},
        start_new_session=True,
    )


def end_server_after(mark_of_process: str, patience: float = _TERMINATE_SECONDS) -> None:
    """Wait until a process ends, then end the Prefect server that it left.

    Args:
        mark_of_process: The mark of the process.
        patience: Seconds between SIGTERM and SIGKILL.
    """
    import psutil

    while not is_gone(mark_of_process):  # psutil's own wait() does not return while the process is a zombie
        time.sleep(_POLL_SECONDS)
    servers = [
        process
        for process in psutil.process_iter()
        if _environment(process).get(SERVED_BY) == mark_of_process and _PREFECT_SERVER in command_line(process)
    ]
    for server in servers:
        with contextlib.suppress(psutil.Error):
            server.terminate()
    for server in psutil.wait_procs(servers, timeout=patience)[1]:
        with contextlib.suppress(psutil.Error):
            server.kill()


def _is_left(process: psutil.Process) -> bool:
    import psutil

    environment = _environment(process)
    parent, flow = environment.get(STARTED_BY), environment.get(SERVED_BY)
    left = (parent is not None and is_gone(parent)) or (
        flow is not None and is_gone(flow) and _PREFECT_SERVER in command_line(process)
    )
    try:
        return left and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _environment(process: psutil.Process) -> dict[str, str]:
    """The environment a process was started with; empty for processes of other users."""
    import psutil

    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}
