"""The owner process of a run, and checks if it is gone.

A process that is killed cannot close its run, so every run names its owner. A process is identified by its id and its
start time, since ids are reused; both within one boot of one machine and one namespace of process ids, since
containers have their own. Whether a process on another machine or in another container is gone cannot be seen; its
runs are closed by ``trtops runs close --force``.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.next_step import NextStep
from trtops.system.processes import is_alive, pid_namespace, started
from trtops.tracking.records import RunInfo
from trtops.tracking.schema import Tag


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process, on any machine. What is not known is empty; ``started`` is in seconds since the epoch, or 0."""

    host: str  # the first 30 characters
    machine: str  # of these three the first 12 characters, which a tag has space for
    boot: str
    namespace: str
    pid: int
    started: int

    def text(self) -> str:
        """The owner as a tag, of at most 100 characters."""
        parts = (self.pid, self.started, self.machine, self.boot, self.namespace, self.host)
        return " ".join(str(part) or "-" for part in parts)

    @classmethod
    def read(cls, text: str) -> Owner | None:
        """The owner from its tag; None if it is damaged."""
        parts = ["" if part == "-" else part for part in text.split(" ", 5)]
        if len(parts) < 6 or not (parts[0].isdecimal() and parts[1].isdecimal()) or len(text) > 120:
            return None
        pid, started, machine, boot, namespace, host = parts
        return cls(host=host, machine=machine, boot=boot, namespace=namespace, pid=int(pid), started=int(started))


def current() -> Owner:
    """The calling process."""
    texts = {"machine": "/etc/machine-id", "boot": "/proc/sys/kernel/random/boot_id"}
    ids = dict.fromkeys(texts, "")
    for name, path in texts.items():
        with suppress(OSError):
            ids[name] = "".join(Path(path).read_text(encoding="utf-8", errors="replace").split())[:12]
    namespace = re.sub("[^0-9]", "", pid_namespace())[:12]
    return Owner(host=platform.node()[:30], namespace=namespace, pid=os.getpid(), started=started() or 0, **ids)


def is_gone(owner: Owner) -> bool:
    """True if the owner has certainly ended; False for one on another machine or in another container."""
    this_process = current()
    # Processes of another machine cannot be seen; those of an earlier boot are all gone.
    if (owner.host, owner.machine) != (this_process.host, this_process.machine):
        return False
    if owner.boot != this_process.boot:
        return True
    return owner.namespace == this_process.namespace and not is_alive(owner.pid, owner.started)


def is_abandoned(info: RunInfo) -> bool:
    """True if the process of a running run has certainly ended; False for a run not started by trtops."""
    owner = owner_of(info)
    return owner is not None and is_gone(owner)


def check_abandoned(info: RunInfo) -> None:
    """Reject writing to a running run while its process may still be alive."""
    if info.status != "running" or is_abandoned(info):
        return
    owner = owner_of(info)
    whose = "was not started by trtops" if owner is None else f"belongs to process {owner.pid} on {owner.host}"
    raise errors.LogError(
        f"Run {info.id} {whose}, which may still be writing it. Wait for its end. If that process is gone, "
        f"close the run: {NextStep('runs close', {'run': info.id, 'force': True})}"
    )


def owner_of(info: RunInfo) -> Owner | None:
    """The writing process of a run, current or former; None for runs not made by trtops."""
    return Owner.read(info.tags.get(Tag.OWNER, ""))


def host_of(info: RunInfo) -> str:
    """The machine of a run; empty for runs not made by trtops."""
    owner = owner_of(info)
    return "" if owner is None else owner.host
