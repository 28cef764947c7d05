"""Whether stores and servers work, for ``trtops doctor``, and the problems of a store, for ``trtops store``.

Problems are runs of dead processes, files without runs, runs without files, and half-written files.
"""

import base64
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from trtops import errors
from trtops.extras import installed, sentence
from trtops.record import Record
from trtops.system import processes
from trtops.system.masking import masked
from trtops.tracking import owner
from trtops.tracking.artifact_files import TEMPORARY
from trtops.tracking.base import RunInfo, Tracker, run_id_of
from trtops.tracking.location import Store, resolve
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.artifacts import local_folder
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.schema import Artifact, Tag
from trtops.tracking.spool import default_spool

# Younger half-written files may still be in use.
_FORGOTTEN_SECONDS = 3600.0

_DEAD = "Its process ended without closing the run: it was killed or crashed."
_REAP = "Run: trtops store reap"

# A run's id, a path or a process, and what is wrong with it.
Problem: TypeAlias = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class HealthFinding(Record):
    """The state of one component; ``none`` if it is missing without harm. ``remedy`` is a command to copy."""

    subject: str
    state: Literal["ok", "none", "problem"]
    text: str
    remedy: str = ""

    def line(self) -> str:
        """The finding in a line or two of text."""
        return f"{self.state:<8} {self.subject}: {self.text}" + (f"\n{'':<9}do: {self.remedy}" if self.remedy else "")


def store_findings(location: str | Path | None = None) -> list[HealthFinding]:
    """Whether the store exists, can be opened and written, and has spooled runs. Makes nothing."""
    if not installed("mlflow"):
        return [HealthFinding(subject="mlflow", state="none", text=f"Nothing is recorded. {sentence('mlflow')}")]
    try:
        where = resolve(location)
        if not isinstance(where, Store):
            findings = [server_finding("MLflow", where, "/health")]
        elif not where.database.exists():
            text = f"none in {where.root} yet; the first recorded run makes it"
            findings = [HealthFinding(subject="store", state="none", text=text)]
        else:
            MlflowTracker(where)
            if not os.access(where.root, os.W_OK):
                raise errors.StoreError(f"{where.root} is read-only here")
            findings = [HealthFinding(subject="store", state="ok", text=str(where.root))]
    except errors.TrtopsError as exc:
        return [HealthFinding(subject="store", state="problem", text=str(exc))]
    if spooled := len(default_spool(where if isinstance(where, Store) else None).runs()):
        text = f"{spooled} runs on this machine were not uploaded yet"
        findings.append(HealthFinding(subject="spool", state="problem", text=text, remedy="trtops store upload"))
    return findings


def server_finding(name: str, address: str, path: str, *, login: str = "") -> HealthFinding:
    """Whether a server answers a request of ``path``; ``login`` is ``user:password``, if it needs one."""
    request = urllib.request.Request(address.rstrip("/") + path)
    if login:
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    shown = masked(address)
    try:
        with urllib.request.urlopen(request, timeout=5):
            return HealthFinding(subject=name, state="ok", text=f"answers at {shown}")
    except urllib.error.HTTPError as exc:
        if exc.code in (401, 403):
            return HealthFinding(subject=name, state="ok", text=f"answers at {shown}, and needs a password")
        text = f"answers at {shown} with {exc.code} {exc.reason}"
    except (OSError, ValueError) as exc:
        text = f"does not answer at {shown}: {getattr(exc, 'reason', exc)}"
    variable = "MLFLOW_TRACKING_URI" if name == "MLflow" else "PREFECT_API_URL"
    local = "127.0.0.1" in os.environ.get(variable, "")
    remedy = f"{'trtops team up' if local else 'ask who runs the server'}; or work without it: unset {variable}"
    return HealthFinding(subject=name, state="problem", text=text, remedy=remedy)


def reap(tracker: Tracker) -> list[RunInfo]:
    """Close and return the runs with a dead process on this machine."""
    return [tracker.close(info.id, _DEAD) for info in tracker.find(status="running") if owner.is_abandoned(info)]


def remove_leftovers(tracker: OfflineTracker) -> list[str]:
    """Remove folders of dead processes on this machine and in the spool, and return their paths."""
    abandoned = tracker.spool.abandoned()
    for path in abandoned:
        shutil.rmtree(path, ignore_errors=True)
    return [*map(str, (*processes.remove_left_folders(), *abandoned))]


def close(tracker: Tracker, run: str, *, reason: str = "", force: bool = False) -> list[RunInfo]:
    """Close a run abandoned by its process, and its children without a process, and return them.

    With ``force``, runs whose process may still be writing them are closed as well. ``reason`` becomes the run's error.

    Raises ConfigError if it has ended; LogError if its process may still be writing it.
    """
    info = tracker.info(run_id_of(run, tracker))
    if info.status != "running":
        raise errors.ConfigError(f"Run {info.id} has ended: it is {info.status}.")
    if not force:
        owner.check_abandoned(info)
    below = [child for child in tracker.find(parent=info.id, status="running") if force or owner.is_abandoned(child)]
    return [tracker.close(child_or_run.id, reason or _DEAD) for child_or_run in (*below, info)]


def check_store(tracker: OfflineTracker) -> list[Problem]:
    """Find the problems of a store and of its spool. Nothing is changed; the files of a server are not checked."""
    problems = [
        (f"run {info.id}", f"{info.name!r} is running, and its process is gone. {_REAP}")
        for info in tracker.find(status="running")
        if owner.is_abandoned(info)
    ]
    for run in tracker.spool.runs():
        if run.store == tracker.shown:  # stores may share a spool
            problems.append((f"run {run.id}", f"it is in the spool {run.folder}. Run: trtops store upload"))
    for path, reason in tracker.spool.damaged().items():
        problems.append((str(path), f"a spooled run is damaged: {reason}"))
    for path in tracker.spool.abandoned():
        problems.append((str(path), f"its process is gone. {_REAP}"))
    if tracker.store is not None:
        assert isinstance(tracker.inner, MlflowTracker)
        problems += _check_files(tracker.inner, tracker.store)
    return problems


def _check_files(tracker: MlflowTracker, store: Store) -> Iterator[Problem]:
    # Folders first: a run is in the database before it has a folder.
    run_folders = [
        path for path in store.artifacts.glob("*/*") if re.fullmatch("[0-9a-f]{32}", path.name) and path.is_dir()
    ]
    run_ids: set[str] = set()
    for info, uri in tracker.all_runs():
        run_ids.add(info.id)
        if info.status != "finished" or Tag.KIND not in info.tags or info.deleted:
            continue
        try:
            folder = local_folder(store.root, store.artifacts, uri)
        except errors.StoreError as exc:
            yield f"run {info.id}", str(exc)
            continue
        if folder is not None and not (folder / Artifact.MANIFEST).is_file():
            yield f"run {info.id}", f"{info.name!r} is incomplete: there is no {Artifact.MANIFEST} in {folder}"
    for folder in sorted(folder for folder in run_folders if folder.name not in run_ids):
        yield str(folder), "its files belong to no run. Remove it, or restore a backup."
    for file in sorted([*store.artifacts.rglob(f"{TEMPORARY}*"), *store.root.glob(".mlflow.db.*")]):
        if file.is_file() and file.stat().st_mtime < time.time() - _FORGOTTEN_SECONDS:
            yield str(file), "it is half-written. Remove it."
