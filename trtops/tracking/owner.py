"""Which process owns a run, and whether that process is gone.

A process that is killed cannot close its run, so every run names its owner. A process is identified by its id and its
start time, since ids are reused; both within one boot of one machine and one namespace of process ids, since
containers have their own. A process on another machine or in another container is judged by its heartbeat
(:mod:`trtops.tracking.heartbeat`).
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.record import Record
from trtops.system.processes import is_alive, pid_namespace, started_at
from trtops.tracking.records import RunInfo
from trtops.tracking.schema import Tag

SILENT_SECONDS = 300.0
"""A process without a heartbeat for this long counts as dead, if it cannot be seen from here."""


@dataclass(frozen=True, kw_only=True)
class Owner(Record):
    """A process, on any machine.

    Attributes:
        host: Host name.
        machine: The machine's id, which survives reboots; empty if unknown.
        boot: Id of the machine's present boot; empty if unknown.
        namespace: The namespace that ``pid`` counts in; empty if unknown.
        pid: Process id.
        started: When the process started, in seconds since the epoch; None if that is not known.
    """

    host: str
    machine: str
    boot: str
    namespace: str
    pid: int
    started: int | None

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Everything but the process: processes of the same place see each other."""
        return self.host, self.machine, self.boot, self.namespace


def current() -> Owner:
    """The calling process."""
    return of(os.getpid())


def of(pid: int) -> Owner:
    """A live process of this machine."""
    texts = {"machine": "/etc/machine-id", "boot": "/proc/sys/kernel/random/boot_id"}
    found = dict.fromkeys(texts, "")
    for name, path in texts.items():
        with suppress(OSError):
            found[name] = Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return Owner(host=platform.node(), namespace=pid_namespace(), pid=pid, started=started_at(pid), **found)


def is_gone(owner: Owner) -> bool:
    """True if the owner has certainly ended; False for one on another machine or in another container."""
    here = current()
    if (owner.host, owner.machine) != (here.host, here.machine):
        return False
    if owner.boot != here.boot:
        return True
    return owner.namespace == here.namespace and not is_alive(owner.pid, owner.started)


def tags_of_owner() -> dict[str, str]:
    """The tags of a run that the calling process owns, with a heartbeat of now."""
    return {Tag.OWNER: current().to_json(indent=None), Tag.HEARTBEAT: str(int(time.time()))}


def owner_of(info: RunInfo) -> Owner | None:
    """The owner of a run; None if trtops did not start it."""
    try:
        return Owner.from_json(info.tags.get(Tag.OWNER, ""))
    except errors.FormatError:
        return None


def is_abandoned(info: RunInfo) -> bool:
    """True if the process of a running run has ended: certainly if it can be seen, otherwise by its missing heartbeat.

    False for a run that trtops did not start.
    """
    own = owner_of(info)
    if own is None:
        return False
    silent = _silent_seconds(info)
    return is_gone(own) or (own.place != current().place and silent is not None and silent > SILENT_SECONDS)


def _silent_seconds(info: RunInfo) -> float | None:
    """Seconds since the last heartbeat; None if there was none."""
    heard = info.tags.get(Tag.HEARTBEAT, "")
    return time.time() - int(heard) if heard.isdecimal() else None


def describe_owner(info: RunInfo) -> str:
    """A sentence that names the owner of a running run.

    Raises:
        LogError: If trtops did not start the run.
    """
    own = owner_of(info)
    if own is None:
        raise errors.LogError(f"Run {info.id} was not started by trtops, so its process is unknown.")
    text = f"Run {info.id} belongs to process {own.pid} on {own.host}, which may still be writing it."
    silent = _silent_seconds(info)
    if silent is not None and own.place != current().place:
        text += f" Its last heartbeat was {max(0, silent):.0f} s ago; it counts as dead after {SILENT_SECONDS:.0f} s."
    return text
