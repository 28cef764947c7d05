"""Processes of this machine: which of them live, and what those that are gone have left behind.

What a process leaves when it is killed bears its mark: temporary folders in their names, processes that it started in their
environment (:data:`STARTED_BY`). A mark is a process id with the time that the process started, since ids are used again,
and the namespace that it counts in, since containers count for themselves.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STARTED_BY = "TRTOPS_STARTED_BY"
"""Environment variable of a process that is not to outlive the one whose mark it holds."""

SERVED_BY = "TRTOPS_SERVED_BY"
"""Likewise, of the server that Prefect starts for a flow. Everything else that the flow starts inherits it and is left alone."""

_SECRET = "TRTOPS_SECRET"

_PREFECT_SERVER = "prefect.server.api.server:create_app"
_PARTING_SECONDS = 10.0
_POLL_SECONDS = 0.1
_MARKED = re.compile(r"trtops-[a-z]+-(\d+-\d+-\d+)-\w+(\.\w+)?")


@dataclass(frozen=True)
class LeftProcess:
    """A process whose starter is gone.

    Attributes:
        pid: Its id.
        command: What it was started as, cut.
    """

    pid: int
    command: str


def is_alive(pid: int) -> bool:
    """Whether there is such a process, which has not ended without its parent having asked how."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _stat_fields(pid)[:1] != ["Z"]


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks after the boot; None if there is none, or no ``/proc``."""
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else None


def pid_namespace() -> str:
    """The namespace that process ids count in here; empty where there is none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def mark() -> str:
    """The calling process' mark: digits and dashes."""
    return f"{os.getpid()}-{start_ticks(os.getpid()) or 0}-{re.sub(r'[^0-9]', '', pid_namespace()) or 0}"


def is_gone(mark_of_process: str) -> bool:
    """Whether the process of a mark has certainly ended; False for one in another container, which cannot be seen."""
    try:
        pid, started, namespace = map(int, mark_of_process.split("-"))
    except ValueError:
        return False
    if namespace != int(mark().rpartition("-")[2]):
        return False
    return not is_alive(pid) or (start_ticks(pid) or 0) != started


def shared_secret() -> str:
    """32 hexadecimal digits drawn at random, which this process and the children that it starts know, and no file can."""
    return os.environ.setdefault(_SECRET, secrets.token_hex(16))


def temporary_prefix(what: str) -> str:
    """How the name of a temporary file or folder of this process begins.

    Args:
        what: What it holds: small letters.
    """
    return f"trtops-{what}-{mark()}-"


def left_folders(mark_of_process: str | None = None) -> list[Path]:
    """Temporary files and folders of this user's processes that are gone, or of one of them."""
    found = []
    for path in Path(tempfile.gettempdir()).glob("trtops-*"):
        matched = _MARKED.fullmatch(path.name)
        with contextlib.suppress(OSError):
            asked = matched and mark_of_process in (None, matched[1])
            if matched and asked and path.lstat().st_uid == os.getuid() and is_gone(matched[1]):
                found.append(path)
    return sorted(found)


def left_processes(mark_of_process: str | None = None) -> list[LeftProcess]:
    """Processes of this user that were started by ones that are gone, or by one of them, and were not to outlive them."""
    own = set(_self_and_ancestors())
    return [
        LeftProcess(pid, _command_line(pid)[:200])
        for entry in Path("/proc").glob("[0-9]*")
        if (pid := int(entry.name)) not in own
        and _is_left(pid)
        and mark_of_process in (None, _environment_of(pid).get(STARTED_BY))
    ]


def remove_folder(path: Path) -> None:
    """Remove a temporary file or folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def end(process: LeftProcess) -> bool:
    """Kill a process that was left behind; whether it was still there. One that has its id by now is left alone."""
    try:
        handle = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        return False
    try:
        if not _is_left(process.pid):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def start_watch() -> subprocess.Popen[bytes]:
    """Have the Prefect server that this process starts ended with it, however it ends; see :data:`SERVED_BY`.

    Returns:
        What watches: a process that outlives this one by a moment, deaf to its terminal.
    """
    # This file alone, without site packages: it takes some milliseconds and 10 MB.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _end_server_after(mark_of_process: str) -> None:
    """Wait for the end of a process, and end the Prefect server that it has left."""
    _wait_for_end(mark_of_process)
    for number, patience in ((signal.SIGTERM, _PARTING_SECONDS), (signal.SIGKILL, 0.0)):
        deadline = time.monotonic() + patience
        for pid in _servers_of(mark_of_process):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        while _servers_of(mark_of_process) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


def _wait_for_end(mark_of_process: str) -> None:
    pid = int(mark_of_process.partition("-")[0])
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # an old kernel, or not allowed
        while not is_gone(mark_of_process):
            time.sleep(1.0)
        return
    if not is_gone(mark_of_process):  # else its id is another's by now
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()


def _servers_of(mark_of_process: str) -> list[int]:
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return [
        pid
        for pid in pids
        if _environment_of(pid).get(SERVED_BY) == mark_of_process
        and _PREFECT_SERVER in _command_line(pid)
        and is_alive(pid)
    ]


def _is_left(pid: int) -> bool:
    environment = _environment_of(pid)
    if (starter := environment.get(STARTED_BY)) is not None and is_gone(starter):
        return is_alive(pid)
    server = environment.get(SERVED_BY)
    return server is not None and is_gone(server) and _PREFECT_SERVER in _command_line(pid) and is_alive(pid)


def _self_and_ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        fields = _stat_fields(pid)
        pid = int(fields[1]) if len(fields) > 1 else 0


def _environment_of(pid: int) -> dict[str, str]:
    """What a process was started with; empty if it is not this user's."""
    text = _read_text(f"/proc/{pid}/environ")
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def _command_line(pid: int) -> str:
    return _read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def _stat_fields(pid: int) -> list[str]:
    """Fields of ``/proc/<pid>/stat`` from the third on (proc_pid_stat(5)); the second, a name, may hold spaces and parentheses."""
    return _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    _end_server_after(sys.argv[1])
