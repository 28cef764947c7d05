"""Which process a run belongs to, and whether that process is gone.

A process that is killed cannot close its run. Every run therefore says whose it is, and :func:`is_gone` tells, on the
same machine, whether the owner can still end it. A process is known by its id *and* the time it started, since ids are
used again, within one boot of one machine and one namespace of process ids, since containers count for themselves.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.record import Record
from trtops.tracking.base import RunInfo
from trtops.tracking.schema import Tag


@dataclass(frozen=True, kw_only=True)
class Owner(Record):
    """A process, anywhere.

    Attributes:
        host: Host name.
        machine: The machine's own id, which stays over reboots; empty where there is none.
        boot: Id of the machine's present boot; empty where there is none.
        namespace: The namespace that ``pid`` counts in; empty where there is none.
        pid: Process id.
        started: When the process started, in clock ticks after the boot; None where that is not known.
    """

    host: str
    machine: str
    boot: str
    namespace: str
    pid: int
    started: int | None


def current() -> Owner:
    """The calling process."""
    pid = os.getpid()
    return Owner(
        host=platform.node(),
        machine=_read("/etc/machine-id"),
        boot=_read("/proc/sys/kernel/random/boot_id"),
        namespace=_namespace(),
        pid=pid,
        started=_started(pid),
    )


def is_gone(owner: Owner) -> bool:
    """Whether the owner has certainly ended. An owner on another machine, or in another container, never has."""
    here = current()
    if (owner.host, owner.machine) != (here.host, here.machine):
        return False
    if owner.boot != here.boot:
        return True
    if owner.namespace != here.namespace:
        return False
    return not _exists(owner.pid) or _started(owner.pid) != owner.started


def is_abandoned(info: RunInfo) -> bool:
    """Whether a running run's process has certainly ended; one of another machine, or not of ours, never has."""
    try:
        return is_gone(Owner.from_json(info.tags.get(Tag.OWNER, "")))
    except errors.FormatError:
        return False  # not a run of ours


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _state(pid) != "Z"


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/<pid>/stat`` from the third on (proc_pid_stat(5)); the second, a name, may hold anything."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _state(pid: int) -> str:
    return (_stat(pid) or [""])[0]


def _started(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else None


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
