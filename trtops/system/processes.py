"""Check for living processes, and find the temporary folders of dead ones.

Temporary folders carry the mark of their process in their name. A mark consists of the process id, the start time in
seconds (process ids are reused) and the pid namespace (containers count for themselves).
"""

import contextlib
import os
from pathlib import Path

# Makes idle OpenBLAS threads spin for 2**16 cycles (20 microseconds) before they sleep, see "Runtime variables" in its
# documentation. By default they spin for 0.1 s on every core while numpy is imported, although most commands multiply
# no matrices.
BRIEF_SPIN = {"OPENBLAS_THREAD_TIMEOUT": "16"}

# Random digits known to this process and its children, which inherit the variable, and to no file.
SHARED_SECRET = os.environ.setdefault("TRTOPS_SECRET", os.urandom(16).hex())

# Start of the names of temporary folders that servers and workers of a team have for themselves.
TEAM_FOLDER = "trtops-team-"

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)

# psutil takes 20 ms to import, and most commands only need a name for a temporary folder.


def started() -> int:
    """The start time of this process in seconds since the epoch."""
    import psutil

    return int(psutil.Process().create_time())


def is_alive(pid: int, started_at: int | None) -> bool:
    """True if a process with this id and start time is running; a zombie is not."""
    import psutil

    try:
        process = psutil.Process(pid)
        # psutil derives start times from the boot time, which changes by a second when the clock is adjusted.
        same = started_at is None or abs(process.create_time() - started_at) <= 2
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def pid_namespace() -> str:
    """The pid namespace of this process, such as ``pid:[4026531836]``; empty on systems without one."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def mark() -> str:
    """The mark of the calling process: digits and dashes."""
    return f"{os.getpid()}-{started()}-{pid_namespace().strip('pid:[]') or 0}"


def is_gone(mark_of_process: str) -> bool:
    """True if the process of a mark has certainly ended; False for one in another container."""
    try:
        pid, begun, namespace = map(int, mark_of_process.split("-"))
    except ValueError:
        return False
    return namespace == int(mark().rpartition("-")[2]) and not is_alive(pid, begun)


def temporary_prefix(purpose: str) -> str:
    """The prefix for names of temporary files and folders of this process; ``purpose`` is lower-case letters."""
    return f"trtops.{purpose}.{mark()}."


def is_temporary(text: str) -> bool:
    """True if a text names a temporary file or folder of this process, which ends with it."""
    return f".{mark()}." in text


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this forked process when its parent ends; needs Linux."""
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def _is_ours(path: Path) -> bool:
    return not hasattr(os, "getuid") or path.lstat().st_uid == os.getuid()


def remove_left_folders() -> list[Path]:
    """Remove this user's temporary files and folders of dead processes, and return their paths."""
    import shutil  # both are slow to import, and help does not need them
    import tempfile

    removed, folder = [], Path(tempfile.gettempdir())
    folder = folder.parent if folder.name.startswith(TEAM_FOLDER) else folder
    for path in sorted([*folder.glob("trtops.*.*.*"), *folder.glob(f"{TEAM_FOLDER}*/trtops.*.*.*")]):
        with contextlib.suppress(OSError):  # another command may remove it at the same time
            # Another user of the machine could give any folder such a name.
            if is_gone(path.name.split(".")[2]) and _is_ours(path):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
                removed.append(path)
    return removed
