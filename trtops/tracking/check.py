"""Problems of a store: runs of dead processes, files without runs, runs without files, and half-written files."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import psutil

from trtops import errors
from trtops.system import processes
from trtops.tracking import owner
from trtops.tracking.base import RunInfo, Tracker
from trtops.tracking.location import Store
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.artifacts import local_folder
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.records import run_id_of
from trtops.tracking.run import TEMPORARY
from trtops.tracking.schema import Artifact, Tag

# Younger half-written files may still be in use.
_FORGOTTEN_SECONDS = 3600.0

_DEAD = "Its process ended without closing the run: it was killed or crashed."
_REAP = "Run: trtops store reap"


class StoreProblem(NamedTuple):
    """One problem: a run's id, a path or a process, and what is wrong with it."""

    subject: str
    text: str


def reap(tracker: Tracker) -> list[RunInfo]:
    """Close the runs whose processes on this machine ended without doing so, and return them."""
    return [tracker.close(info.id, _DEAD) for info in tracker.find(status="running") if owner.is_abandoned(info)]


def remove_leftovers(tracker: OfflineTracker) -> list[str]:
    """End processes and remove folders that dead processes left on this machine; returns descriptions."""
    removed = []
    for process in processes.left_processes():
        description = processes.describe(process)
        # psutil compares start times, so that a new process with the same id is not killed.
        with contextlib.suppress(psutil.Error):
            process.kill()
            removed.append(description)
    for path in (*processes.left_folders(), *tracker.spool.abandoned()):
        processes.remove_folder(path)
        removed.append(str(path))
    return removed


def close(tracker: Tracker, run: str, *, why: str = "", force: bool = False) -> list[RunInfo]:
    """Close a run that its process will not end, and its children without a process, and return them.

    With ``force``, runs whose process may still be writing them are closed as well. ``why`` becomes the run's error.

    Raises ConfigError if it has ended; LogError if its process may still be writing it.
    """
    info = tracker.info(run_id_of(run, tracker))
    if info.status != "running":
        raise errors.ConfigError(f"Run {info.id} has ended: it is {info.status}.")
    if not force:
        owner.check_abandoned(info)
    below = [child for child in tracker.find(parent=info.id, status="running") if force or owner.is_abandoned(child)]
    return [tracker.close(each.id, why or _DEAD) for each in (*below, info)]


def check_store(tracker: OfflineTracker) -> list[StoreProblem]:
    """Find the problems of a store and of this machine. Nothing is changed; the files of a server are not checked."""
    found = [
        StoreProblem(f"run {info.id}", f"{info.name!r} is running, and its process is gone. {_REAP}")
        for info in tracker.find(status="running")
        if owner.is_abandoned(info)
    ]
    for run in tracker.spool.runs():
        found.append(StoreProblem(f"run {run.id}", f"it is in the spool {run.folder}. Run: trtops store upload"))
    for path, why in tracker.spool.damaged().items():
        found.append(StoreProblem(str(path), f"a spooled run is damaged: {why}"))
    for process in processes.left_processes():
        text = f"the process that started {processes.describe(process)} is gone. {_REAP}"
        found.append(StoreProblem(f"process {process.pid}", text))
    for path in (*processes.left_folders(), *tracker.spool.abandoned()):
        found.append(StoreProblem(str(path), f"its process is gone. {_REAP}"))
    if tracker.store is not None:
        assert isinstance(tracker.inner, MlflowTracker)
        found += _check_files(tracker.inner, tracker.store)
    return found


def _check_files(tracker: MlflowTracker, store: Store) -> Iterator[StoreProblem]:
    # Folders first: a run is in the database before it has a folder.
    found = [each for each in store.artifacts.glob("*/*") if re.fullmatch("[0-9a-f]{32}", each.name) and each.is_dir()]
    known: set[str] = set()
    for info, deleted, uri in tracker.all_runs():
        known.add(info.id)
        if info.status != "finished" or Tag.KIND not in info.tags or deleted:
            continue
        try:
            folder = local_folder(store.root, store.artifacts, uri)
        except errors.StoreError as exc:
            yield StoreProblem(f"run {info.id}", str(exc))
            continue
        if folder is not None and not (folder / Artifact.MANIFEST).is_file():
            yield StoreProblem(
                f"run {info.id}", f"{info.name!r} is incomplete: there is no {Artifact.MANIFEST} in {folder}"
            )
    for folder in sorted(folder for folder in found if folder.name not in known):
        yield StoreProblem(str(folder), "its files belong to no run. Remove it, or restore a backup.")
    for file in sorted([*store.artifacts.rglob(f"{TEMPORARY}*"), *store.root.glob(".mlflow.db.*")]):
        if file.is_file() and file.stat().st_mtime < time.time() - _FORGOTTEN_SECONDS:
            yield StoreProblem(str(file), "it is half-written. Remove it.")
