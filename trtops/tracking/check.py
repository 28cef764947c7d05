"""Problems of a store: runs of dead processes, files without runs, runs without files, and half-written files.

A check changes nothing. Of a server only its answers are visible, and its files if their folder is on this machine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.record import Record
from trtops.system import processes
from trtops.tracking import owner
from trtops.tracking.base import RunInfo, Tracker
from trtops.tracking.ids import run_id_of
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.artifacts import local_folder
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.run import TEMPORARY
from trtops.tracking.schema import Artifact, Tag

_FORGOTTEN_SECONDS = 3600.0
"""Younger half-written files may still be in use."""

_DEAD = "Its process ended without closing the run: it was killed or crashed."


@dataclass(frozen=True, kw_only=True)
class Finding(Record):
    """One problem.

    Attributes:
        subject: A run's id, a path, or a process.
        text: The problem.
        remedy: What to do; empty if only the user can know.
    """

    subject: str
    text: str
    remedy: str = ""

    def line(self) -> str:
        """The finding in a line."""
        return f"{self.subject}: {self.text}.{f' {self.remedy}' if self.remedy else ''}"


@dataclass(frozen=True, kw_only=True)
class StoreCheck(Record):
    """The result of a check.

    Attributes:
        store: The store's address.
        findings: All problems.
        unseen: The parts that could not be checked from here, a sentence each.
    """

    store: str
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()

    def text(self) -> str:
        """The result for a terminal."""
        count = f"{len(self.findings)} problem{'' if len(self.findings) == 1 else 's'}"
        return "\n".join([f"{self.store}: {count}.", *(finding.line() for finding in self.findings), *self.unseen])


def reap(tracker: Tracker) -> list[RunInfo]:
    """Close the runs whose processes ended without doing so: killed, crashed, or lost in a power failure.

    Only processes of this machine are seen.

    Returns:
        The closed runs.
    """
    return [tracker.close(info.id, _DEAD) for info in tracker.find(status="running") if owner.is_abandoned(info)]


def remove_leftovers(tracker: OfflineTracker) -> list[str]:
    """End processes and remove folders that dead processes left on this machine; returns descriptions."""
    removed = []
    for process in processes.left_processes():
        command = processes.command_line(process)[:200]
        if processes.kill_left_process(process):
            removed.append(f"process {process.pid} ({command})")
    for path in (*processes.left_folders(), *tracker.spool.abandoned()):
        processes.remove_folder(path)
        removed.append(str(path))
    return removed


def close(tracker: Tracker, run: str, *, why: str = "", force: bool = False) -> list[RunInfo]:
    """Close a run that its process will not end, and its children without a process.

    Args:
        tracker: The tracking store.
        run: The run's id.
        why: The reason, which becomes the run's error.
        force: Whether to close a run whose process may still be writing it.

    Returns:
        The closed runs.

    Raises:
        ConfigError: If it has ended.
        LogError: If its process may still be writing it.
    """
    info = tracker.info(run_id_of(run))
    if info.status != "running":
        raise errors.ConfigError(f"Run {info.id} has ended: it is {info.status}.")
    if not force:
        owner.check_abandoned(info)
    below = [child for child in tracker.find(parent=info.id, status="running") if force or owner.is_abandoned(child)]
    return [tracker.close(each.id, why or _DEAD) for each in (*below, info)]


def check_store(tracker: OfflineTracker, *, artifacts: Path | None = None) -> StoreCheck:
    """Find the problems of a store and of this machine.

    Args:
        tracker: The tracking store.
        artifacts: For a server whose files are on this machine: their folder, its ``--artifacts-destination``.

    Raises:
        ConfigError: If the folder is not the server's.
        StoreError: If the store cannot be read.
        TrackingUnavailableError: If it does not answer.
    """
    if artifacts is not None and tracker.store is not None:
        raise errors.ConfigError(f"{tracker.shown} is not a server; its files are in {tracker.store.artifacts}.")
    if artifacts is not None and not artifacts.is_dir():
        raise errors.ConfigError(f"--artifacts {artifacts}: expected the server's --artifacts-destination folder.")
    unseen = []
    findings = [*_runs_and_leftovers(tracker)]
    if tracker.store is not None:
        findings += _file_findings(tracker, tracker.store.root, tracker.store.artifacts)
    elif artifacts is not None:
        findings += _file_findings(tracker, artifacts.absolute(), artifacts.absolute())
    else:
        unseen.append(
            f"The files of {tracker.shown} were not checked. On its machine, run: "
            f"trtops store check --root {tracker.shown} --artifacts <their folder>"
        )
    return StoreCheck(store=tracker.shown, findings=tuple(findings), unseen=tuple(unseen))


def _runs_and_leftovers(tracker: OfflineTracker) -> Iterator[Finding]:
    reap_command = "Run: trtops store reap"
    for info in tracker.find(status="running"):
        if owner.is_abandoned(info):
            text = f"{info.name!r} is running, and its process is gone"
            yield Finding(subject=f"run {info.id}", text=text, remedy=reap_command)
    for run in tracker.spool.runs():
        text = f"it is in the spool {run.folder}"
        yield Finding(subject=f"run {run.id}", text=text, remedy="Run: trtops store upload")
    for path, why in tracker.spool.damaged().items():
        yield Finding(subject=str(path), text=f"a spooled run is damaged: {why}")
    for process in processes.left_processes():
        text = f"the process that started it is gone ({processes.command_line(process)[:200]})"
        yield Finding(subject=f"process {process.pid}", text=text, remedy=reap_command)
    for path in (*processes.left_folders(), *tracker.spool.abandoned()):
        yield Finding(subject=str(path), text="its process is gone", remedy=reap_command)


def _file_findings(tracker: OfflineTracker, root: Path, artifacts: Path) -> Iterator[Finding]:
    """Problems of the runs' files.

    Args:
        tracker: The tracking store.
        root: The folder that all files must be in.
        artifacts: The folder of the artifacts.
    """
    assert isinstance(tracker.inner, MlflowTracker)
    # Folders first: a run is in the database before it has a folder.
    folders = [each for each in artifacts.glob("*/*") if re.fullmatch("[0-9a-f]{32}", each.name) and each.is_dir()]
    known: set[str] = set()
    for info, deleted, uri in tracker.inner.all_runs():
        known.add(info.id)
        if info.status != "finished" or Tag.KIND not in info.tags or deleted:
            continue
        try:
            folder = local_folder(root, artifacts, uri)
        except errors.StoreError as exc:
            yield Finding(subject=f"run {info.id}", text=str(exc))
            continue
        if folder is not None and not folder.is_dir():
            yield Finding(subject=f"run {info.id}", text=f"{info.name!r} has no folder {folder}")
        elif folder is not None and not (folder / Artifact.MANIFEST).is_file():
            yield Finding(
                subject=f"run {info.id}", text=f"{info.name!r} has no {Artifact.MANIFEST}, so it is incomplete"
            )
    lost = [folder for folder in sorted(folders) if folder.name not in known]
    if tracker.store is None and lost and len(lost) == len(folders):
        raise errors.ConfigError(
            f"{tracker.shown} has none of the {len(lost)} runs whose files are in {artifacts}. "
            "Expected the server's --artifacts-destination folder."
        )
    for folder in lost:
        yield Finding(subject=str(folder), text="its files belong to no run", remedy="Remove it, or restore a backup.")
    half_written = [*artifacts.rglob(f"{TEMPORARY}*"), *root.glob(".mlflow.db.*")]
    for file in sorted(half_written):
        if file.is_file() and file.stat().st_mtime < time.time() - _FORGOTTEN_SECONDS:
            yield Finding(subject=str(file), text="it is half-written", remedy="Remove it.")
