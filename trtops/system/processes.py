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
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

# psutil takes 20 ms to import, and most commands only need a name for a temporary folder.

STARTED_BY = "TRTOPS_PARENT"
"""Environment variable that holds the mark of the parent. Such a process must not outlive its parent."""

_MARKED = re.compile(r"trtops\.[a-z]+\.(\d+-\d+-\d+)\.\w+(\.\w+)?")


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
        # psutil derives start times from the boot time, which changes by a second when the clock is adjusted.
        same = started is None or abs(process.create_time() - started) <= 2
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
    return os.environ.setdefault("TRTOPS_SECRET", secrets.token_hex(16))


def temporary_prefix(what: str) -> str:
    """The prefix for names of temporary files and folders of this process; ``what`` is lower-case letters."""
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

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # processes of other users have no readable environment
            parent = process.environ().get(STARTED_BY)
            if parent is not None and is_gone(parent) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def describe(process: psutil.Process) -> str:
    """The id and the command line of a process, which is empty if it cannot be read."""
    import psutil

    words: list[str] = []
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
    return f"process {process.pid} ({' '.join(words)[:200]})"
