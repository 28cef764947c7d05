"""Which process a run belongs to, and whether that process is gone.

A process that is killed cannot close its run. So every run says which process owns it, and :func:`is_gone` says, on the same
machine, whether that process can still end it. A process is identified by its id and its start time, since ids are reused;
both within one boot of one machine, and within one namespace of process ids, since containers have their own. From anywhere
else it is its heartbeat that tells (:func:`is_abandoned`).
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.processes import is_alive, pid_namespace, started_at
from trtops.record import Record
from trtops.tracking.base import RunInfo
from trtops.tracking.heartbeat import SILENT_SECONDS
from trtops.tracking.schema import Tag


@dataclass(frozen=True, kw_only=True)
class Owner(Record):
    """A process, on any machine.

    Attributes:
        host: Host name.
        machine: The machine's id, which reboots do not change; empty where there is none.
        boot: Id of the machine's present boot; empty where there is none.
        namespace: The namespace that ``pid`` counts in; empty where there is none.
        pid: Process id.
        started: When the process started, in seconds since the epoch; None where that is not known.
    """

    host: str
    machine: str
    boot: str
    namespace: str
    pid: int
    started: int | None


def current() -> Owner:
    """The calling process."""
    return of(os.getpid())


def of(pid: int) -> Owner:
    """A living process of this machine."""
    return Owner(
        host=platform.node(),
        machine=_read_text("/etc/machine-id"),
        boot=_read_text("/proc/sys/kernel/random/boot_id"),
        namespace=pid_namespace(),
        pid=pid,
        started=started_at(pid),
    )


def is_gone(owner: Owner) -> bool:
    """Whether the owner has certainly ended; False for one on another machine or in another container, which cannot be seen."""
    here = current()
    if (owner.host, owner.machine) != (here.host, here.machine):
        return False
    if owner.boot != here.boot:
        return True
    if owner.namespace != here.namespace:
        return False
    return not is_alive(owner.pid, owner.started)


def tags_of_owner() -> dict[str, str]:
    """The tags by which a run says that it is the calling process's, and that this is alive now."""
    return {Tag.OWNER: current().to_json(indent=None), Tag.HEARTBEAT: str(int(time.time()))}


def is_abandoned(info: RunInfo) -> bool:
    """Whether a running run's process has ended: certainly, where it can be seen, and else by its silence.

    False for a run that is not of trtops.
    """
    try:
        own = Owner.from_json(info.tags.get(Tag.OWNER, ""))
    except errors.FormatError:
        return False  # not a run of ours
    silent = silent_seconds(info)
    return is_gone(own) or (not _can_be_seen(own) and silent is not None and silent > SILENT_SECONDS)


def silent_seconds(info: RunInfo) -> float | None:
    """How long a run's process has said nothing; None if it never did."""
    heard = info.tags.get(Tag.HEARTBEAT, "")
    return time.time() - int(heard) if heard.isdecimal() else None


def told(info: RunInfo) -> str:
    """Whose a running run is, in a sentence.

    Raises:
        LogError: If it is not of trtops.
    """
    try:
        own = Owner.from_json(info.tags.get(Tag.OWNER, ""))
    except errors.FormatError:
        raise errors.LogError(f"Run {info.id} was not started by trtops, which cannot tell whose it is.") from None
    silent = silent_seconds(info)
    heard = (
        ""
        if silent is None
        else f" It was heard of {max(0, silent):.0f} s ago, and is taken for dead after {SILENT_SECONDS:.0f} s."
    )
    return (
        f"Run {info.id} belongs to process {own.pid} on {own.host}, which may still be writing it."
        f"{'' if _can_be_seen(own) else heard}"
    )


def _can_be_seen(owner: Owner) -> bool:
    """Whether the processes of this machine tell if it is there."""
    here = current()
    return (owner.host, owner.machine, owner.boot, owner.namespace) == (
        here.host,
        here.machine,
        here.boot,
        here.namespace,
    )


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
