"""Whether a store is sound: what dead processes left in it and on this machine, files without runs and runs without files.

What is safe is mended when that is asked for: runs of dead processes are closed, what they left half-written is removed, and
files that belong to no run are put aside, never deleted. Of a server only what it answers and what lies on this machine can be
seen: its files where their folder is named; the rest is said to be unseen.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors, processes
from trtops.record import Record
from trtops.tracking import owner
from trtops.tracking.base import RunInfo, Tracker
from trtops.tracking.keeping import KeepingTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.rows import RunRow
from trtops.tracking.schema import Artifact
from trtops.tracking.writer import TEMPORARY

_FORGOTTEN_SECONDS = 3600.0
"""How old half-written files must be before nobody is taken to be writing them."""

_RUN_ID = re.compile("[0-9a-f]{32}")
_DEAD = "Its process ended without closing the run: it was killed or crashed."


@dataclass(frozen=True, kw_only=True)
class Finding(Record):
    """Something that is not as it should be.

    Attributes:
        what: A run's id, a path, or a process.
        says: What is wrong with it.
        mend: What mending does, or did; empty if only a person can say.
        mended: Whether that was done.
    """

    what: str
    says: str
    mend: str = ""
    mended: bool = False

    def text(self) -> str:
        """The finding in a line."""
        done = f" {'Done' if self.mended else 'To be done by --mend'}: {self.mend}." if self.mend else ""
        return f"{self.what}: {self.says}.{done}"


@dataclass(frozen=True, kw_only=True)
class StoreCheck(Record):
    """What was found in a store and on this machine.

    Attributes:
        store: Its address.
        findings: What is not as it should be.
        unseen: What could not be looked at from here, a sentence each.
    """

    store: str
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing is left to be mended."""
        return all(finding.mended for finding in self.findings)

    def text(self) -> str:
        """All of it, for a terminal."""
        left = sum(not finding.mended for finding in self.findings)
        head = f"{self.store}: {len(self.findings)} findings, {len(self.findings) - left} mended."
        return "\n".join([head, *(finding.text() for finding in self.findings), *self.unseen])


def reap(tracker: Tracker) -> list[RunInfo]:
    """Close the runs whose processes have ended without doing so: killed, crashed, or lost with their machine's power.

    Processes of this machine are looked for; those of others count as ended once they are silent.

    Returns:
        The runs that were closed, as they are now.
    """
    return [tracker.close(info.id, _DEAD) for info in tracker.find(status="running") if owner.is_abandoned(info)]


def close(tracker: Tracker, run: str, *, why: str = "", force: bool = False) -> list[RunInfo]:
    """Close a run that its process will not end any more, and the runs below it that nobody is at.

    Args:
        tracker: The memory.
        run: The run, or what its id begins with.
        why: The reason, which becomes the run's error.
        force: Whether a run is closed though its process may still be writing it.

    Returns:
        What was closed, as it is now.

    Raises:
        ConfigError: If it has ended, or its process may still be writing it.
    """
    info = tracker.info(tracker.whole_id(run))
    if info.status != "running":
        raise errors.ConfigError(f"Run {info.id} has ended: it is {info.status}.")
    if not force and not owner.is_abandoned(info):
        raise errors.ConfigError(f"{owner.told(info)} Wait for its end, or say --force.")
    below = [child for child in tracker.find(parent=info.id, status="running") if force or owner.is_abandoned(child)]
    return [tracker.close(each.id, why or _DEAD) for each in (*below, info)]


def check_store(tracker: KeepingTracker, *, mend: bool = False, artifacts: Path | None = None) -> StoreCheck:
    """Look for what is not as it should be, and mend what is safe if that is asked for.

    Args:
        tracker: The memory.
        mend: Whether to mend.
        artifacts: Of a server whose files lie on this machine: their folder, its ``--artifacts-destination``.

    Raises:
        ConfigError: If a folder is given that is not the server's.
        StoreError: If the store cannot be read.
        TrackingUnavailableError: If it does not answer.
    """
    found = [
        *_dead_runs(tracker),
        *_outbox_findings(tracker),
        *leftovers(),
        *_file_findings(tracker, artifacts),
    ]
    findings = [mended(finding, do) if mend else finding for finding, do in found]
    unseen = (
        ()
        if tracker.store or artifacts
        else (
            f"Files without runs, and runs without files, can be seen where {tracker.shown} keeps its files: say "
            f"`trtops store check --root {tracker.shown} --artifacts <their folder>` there.",
        )
    )
    return StoreCheck(store=tracker.shown, findings=tuple(findings), unseen=unseen)


Found = Iterator[tuple[Finding, "Callable[[], object] | None"]]


def leftovers() -> Found:
    """Child processes and temporary folders that dead processes left on this machine."""
    for process in processes.left_processes():
        says = f"it was started by a process that is gone ({processes.command_line(process)[:200]})"
        finding = Finding(what=f"process {process.pid}", says=says, mend="it is ended")
        yield finding, lambda process=process: processes.kill_left_process(process)  # type: ignore[misc]
    for path in processes.left_folders():
        finding = Finding(what=str(path), says="its process is gone", mend="it is removed")
        yield finding, lambda path=path: processes.remove_folder(path)  # type: ignore[misc]


def mended(finding: Finding, do: Callable[[], object] | None) -> Finding:
    """A finding after it was mended, or could not be."""
    if do is None:
        return finding
    try:
        do()
    except (OSError, errors.TrackingError) as exc:
        return replace(finding, says=f"{finding.says}; it could not be mended ({exc})")
    return replace(finding, mended=True)


def _dead_runs(tracker: KeepingTracker) -> Found:
    for info in tracker.find(status="running"):
        if owner.is_abandoned(info):
            finding = Finding(
                what=f"run {info.id}", says=f"{info.name!r} is running, and its process is gone", mend="it is closed"
            )
            yield finding, lambda run_id=info.id: tracker.close(run_id, _DEAD)  # type: ignore[misc]


def _outbox_findings(tracker: KeepingTracker) -> Found:
    for folder in tracker.outbox.folders():
        if folder.run is None:
            yield Finding(what=str(folder.path), says=f"a kept run is damaged: {folder.why}"), None
        else:
            yield (
                Finding(what=f"run {folder.run.id}", says=f"it waits in {folder.path} for `trtops store upload`"),
                None,
            )
    for path in tracker.outbox.abandoned():
        finding = Finding(what=str(path), says="a process was killed while it kept a run here", mend="it is removed")
        yield finding, lambda path=path: processes.remove_folder(path)  # type: ignore[misc]


def _file_findings(tracker: KeepingTracker, artifacts: Path | None) -> Found:
    """What is wrong with files of runs, as far as they lie on this machine."""
    if tracker.store is not None:
        if artifacts is not None:
            raise errors.ConfigError(
                f"{tracker.shown} is no server: its files are in {tracker.store.artifacts} (no --artifacts)."
            )
        folder, aside = tracker.store.artifacts, tracker.store.root / "lost"
    elif artifacts is not None:
        folder, aside = artifacts.absolute(), artifacts.absolute().parent / "lost"
        if not folder.is_dir():
            raise errors.ConfigError(
                f"--artifacts {folder} is no folder; expected the server's --artifacts-destination."
            )
    else:
        return
    # Folders first: a run is in the database before it has a folder.
    folders = {each for each in folder.glob("*/*") if _RUN_ID.fullmatch(each.name) and each.is_dir()}
    assert isinstance(tracker.inner, MlflowTracker)
    rows = tracker.inner.run_rows(folder)
    yield from _orphans(tracker, folders, rows, aside)
    yield from _runs_without_files(rows)
    halves = [*folder.rglob(f"{TEMPORARY}*")]
    if tracker.store is not None:
        halves += tracker.store.root.glob(f".{tracker.store.database.name}.*")
    yield from _half_written(halves)


def _orphans(tracker: KeepingTracker, folders: set[Path], rows: list[RunRow], aside: Path) -> Found:
    """Folders of no run."""
    known = {row.id for row in rows}
    lost = sorted(folder for folder in folders if folder.name not in known and not _is_run(tracker, folder.name))
    if tracker.store is None and lost and len(lost) == len(folders):
        raise errors.ConfigError(
            f"{tracker.shown} knows none of the {len(lost)} runs whose files are in {lost[0].parents[1]}. "
            "Expected the folder that this server keeps its artifacts in (its --artifacts-destination)."
        )
    for folder in lost:
        yield _orphan_finding(folder, aside / folder.parent.name / folder.name)


def _is_run(tracker: KeepingTracker, run_id: str) -> bool:
    """Whether there is such a run though the list of all did not have it: one that is new, or that a user may not see."""
    if tracker.store is not None:
        return False  # its database has all
    try:
        tracker.info(run_id)
    except errors.RunNotFoundError:
        return False
    except errors.TrackingUnavailableError:
        raise
    except errors.TrackingError:
        return True  # this user may not see it
    return True


def _runs_without_files(rows: list[RunRow]) -> Found:
    for row in rows:
        if row.finished and row.ours and not row.deleted and row.folder is not None:
            what = f"run {row.id}"
            if not row.folder.is_dir():
                yield Finding(what=what, says=f"{row.name!r} has no folder {row.folder}"), None
            elif not (row.folder / Artifact.MANIFEST).is_file():
                says = f"{row.name!r} has no {Artifact.MANIFEST}, so it counts for nothing"
                yield Finding(what=what, says=says), None


def _half_written(files: Iterable[Path]) -> Found:
    forgotten = time.time() - _FORGOTTEN_SECONDS
    for file in sorted(files):
        if file.is_file() and file.stat().st_mtime < forgotten:
            finding = Finding(what=str(file), says="it was left half-written", mend="it is removed")
            yield finding, lambda file=file: file.unlink(missing_ok=True)  # type: ignore[misc]


def _orphan_finding(folder: Path, target: Path) -> tuple[Finding, Callable[[], object]]:
    """Artifacts of no run: what `mlflow gc` leaves is empty; a database from a backup leaves what may be wanted."""
    if not any(path.is_file() for path in folder.rglob("*")):
        finding = Finding(what=str(folder), says="it is the empty folder of no run", mend="it is removed")
        return finding, lambda: processes.remove_folder(folder)
    finding = Finding(what=str(folder), says="its files belong to no run", mend=f"it is put aside, into {target}")

    def put_aside() -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)

    return finding, put_aside
