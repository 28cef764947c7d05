"""The spool: a folder of runs refused by their store, uploaded later.

Each run is a folder named by its local id (:func:`trtops.tracking.records.new_local_id`)::

    <local id>/
        run.json    all that was logged to the run, and the SHA-256 of each artifact
        artifacts/  the artifacts, with the manifest

A folder appears whole or not at all: it is written under another name, which holds the mark of its process, and then
renamed. The spool belongs to one user (mode 700). A folder that another user owns or can write to is not used, since
its runs would be uploaded as one's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from trtops import errors
from trtops.record import sha256, sha256_file, to_jsonable
from trtops.system import processes
from trtops.system.files import is_private, sync_to_disk, user_id
from trtops.tracking.artifact_files import LocalFiles, check_path
from trtops.tracking.location import Store, default_root
from trtops.tracking.records import ArtifactEntry, RunData, RunInfo, is_local, is_run_id
from trtops.tracking.schema import Artifact, Tag

if TYPE_CHECKING:
    from trtops.tracking.memory import MemoryTracker
    from trtops.tracking.mlflow import MlflowTracker

# Trackers that runs can be uploaded to: they can make a run with given tags, or continue the run that has them.
SpoolTarget: TypeAlias = "MlflowTracker | MemoryTracker"

# The errors of a store that cannot take a run now.
STORE_UNAVAILABLE = (errors.TrackingUnavailableError, errors.NoRoomError)

_WRITING = ".writing."


@dataclass(kw_only=True)
class SpooledRun(RunData):
    """Everything logged to a run, except the content of its artifacts.

    ``parent`` is a local id if the parent is in the spool too. Artifacts include the manifest; those that the store has
    and the spool does not are ``only_in_store``.
    """

    # Address of the store that it is meant for, without a password, and its id there if the store made it.
    store: str
    run_id: str | None = None
    artifacts: dict[str, ArtifactEntry] = field(default_factory=dict)
    only_in_store: tuple[str, ...] = ()
    folder: Path = Path()

    @property
    def local_id(self) -> str:
        """The id from the run's own process."""
        return self.tags[Tag.LOCAL_ID]

    @property
    def id(self) -> str:
        """Its id in the store, or its local id."""
        return self.run_id or self.local_id

    def info(self) -> RunInfo:
        """The run as searches return it."""
        return self.info_as(self.id)

    def to_json(self) -> bytes:
        """The run as ASCII JSON, since names may not be valid UTF-8."""
        plain: dict[str, Any] = {**vars(self), "artifacts": [entry.to_dict() for entry in self.artifacts.values()]}
        plain["metrics"] = [[list(name), value] for name, value in self.metrics.items()]
        del plain["folder"]
        return json.dumps(to_jsonable(plain), indent=2, allow_nan=False).encode("ascii")

    @classmethod
    def from_folder(cls, folder: Path) -> SpooledRun:
        """Read a folder of the spool."""
        try:
            plain = json.loads((folder / "run.json").read_bytes())
            entries = [ArtifactEntry.from_dict(entry) for entry in plain["artifacts"]]
            plain["artifacts"] = {entry.path: entry for entry in entries}
            plain["metrics"] = {tuple(map(str, name)): float(value) for name, value in plain["metrics"]}
            plain["only_in_store"] = tuple(plain["only_in_store"])
            run = cls(**plain, folder=folder)
            for entry in entries:
                check_path(entry.path)
            if run.local_id != folder.name or not all(map(is_run_id, filter(None, (run.id, run.parent, run.local_id)))):
                raise errors.FormatError("its ids are malformed, or those of another run")
        except Exception as exc:
            # A damaged file may lead to any error.
            raise errors.FormatError(f"{folder}: run.json is damaged ({type(exc).__name__}: {exc}).") from None
        return run

    @property
    def files(self) -> LocalFiles:
        """The artifacts in its folder."""
        return LocalFiles(self.folder / "artifacts")

    def check(self) -> None:
        """Compare every file with its SHA-256."""
        for entry in self.artifacts.values():
            file = self.files.find(entry.path)
            if entry.path not in self.only_in_store and (file is None or sha256_file(file) != entry.sha256):
                problem = "is missing" if file is None else "has other content than run.json says"
                raise errors.FormatError(f"{self.folder / 'artifacts' / entry.path} {problem}.")


class Spool:
    """The spool folder; made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, local_id: str) -> Path:
        """Begin to write a run, and return the folder for its files."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            if not self._is_ours():
                raise PermissionError(1, "it must be a folder that only this user owns and can write to")
            # A full disk is found now, not with the first artifact.
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.write(bytes(4096))
                file.flush()
            folder = self.folder / f"{_WRITING}{processes.mark()}.{local_id}"
            (folder / "artifacts").mkdir(mode=0o700, parents=True)
            folder.chmod(0o700)
        except OSError as exc:
            raise errors.NoRoomError(
                f"Runs cannot be spooled to {self.folder}: {exc.strerror or exc}. Set TRTOPS_SPOOL to another folder."
            ) from exc
        return folder

    def finish(self, run: SpooledRun) -> None:
        """Write the data of a run next to its artifacts, and give its folder the final name."""
        try:
            (run.folder / "run.json").write_bytes(run.to_json())
            # The name must not reach the disk before the content.
            for path in (*run.folder.rglob("*"), run.folder):
                sync_to_disk(path)
            run.folder = run.folder.rename(self.folder / run.local_id)
        except OSError as exc:
            raise errors.NoRoomError(f"Run {run.id} could not be spooled to {self.folder}: {exc}.") from exc

    def runs(self) -> list[SpooledRun]:
        """All undamaged runs, the oldest first: parents come before their children."""
        spooled_runs = [run for run in self._read_all() if isinstance(run, SpooledRun)]
        return sorted(spooled_runs, key=lambda run: run.start_time)

    def damaged(self) -> dict[Path, str]:
        """Unreadable folders, with the reasons."""
        return dict(entry for entry in self._read_all() if not isinstance(entry, SpooledRun))

    def get(self, run_id: str) -> SpooledRun | None:
        """A run by its id or its local id."""
        return next((run for run in self.runs() if run_id in (run.run_id, run.local_id)), None)

    def being_written(self) -> set[str]:
        """Local ids of the runs of live processes."""
        return {folder.name.rpartition(".")[2] for folder, is_gone in self._drafts() if not is_gone}

    def abandoned(self) -> list[Path]:
        """Folders left unfinished by dead processes."""
        return [folder for folder, is_gone in self._drafts() if is_gone]

    def _drafts(self) -> Iterator[tuple[Path, bool]]:
        for folder in self.folder.glob(f"{_WRITING}*") if self._is_ours() else ():
            yield folder, processes.is_gone(folder.name.removeprefix(_WRITING).partition(".")[0])

    def _read_all(self) -> Iterator[SpooledRun | tuple[Path, str]]:
        for folder in sorted(self.folder.iterdir()) if self._is_ours() else ():
            if not folder.name.startswith(".") and folder.is_dir():
                try:
                    yield SpooledRun.from_folder(folder)
                except errors.FormatError as exc:
                    yield folder, str(exc)

    def _is_ours(self) -> bool:
        """True if the folder exists, and only this user owns it and can write to it."""
        try:
            status = self.folder.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and is_private(status)


def default_spool(store: Store | None) -> Spool:
    """The spool of an embedded store, or of a server (None): ``TRTOPS_SPOOL``, or a folder for each store."""
    if spool_folder := os.environ.get("TRTOPS_SPOOL"):
        return Spool(Path(spool_folder).absolute())
    if store is None:
        return Spool(default_root() / "spool")
    # An embedded store mostly cannot take a run because its disk is full, so its spool is on the disk for temporary
    # files.
    name = f"trtops-spool-{user_id()}-{sha256(os.fsencode(store.database))[:8]}"
    return Spool(Path(tempfile.gettempdir(), name))


class Uploaded(NamedTuple):
    """The outcome for a run in a folder of the spool. ``reason`` why it is still there, empty if it was uploaded."""

    folder: Path
    run_id: str = ""
    name: str = ""
    reason: str = ""


def upload(tracker: SpoolTarget, spool: Spool, *, moved: bool = False) -> list[Uploaded]:
    """Upload the runs of a spool to their store. It can be interrupted and repeated at any time.

    A run that the store has made is completed under its id. Any other is made now; its local id keeps it from being
    made twice, and stays valid for reading. ``moved`` uploads runs that were meant for another address, too. Nothing is
    done while another process is uploading.
    """
    runs, damaged = spool.runs(), spool.damaged()
    results = [Uploaded(folder, reason=reason) for folder, reason in damaged.items()]
    if not runs:
        return results
    import filelock  # slow, and hardly any spool has a run

    try:
        with filelock.FileLock(spool.folder / ".lock", blocking=False):
            for run in runs:
                try:
                    run_id = _upload_run(tracker, spool, run, moved)
                except STORE_UNAVAILABLE:
                    raise
                except errors.TrtopsError as exc:
                    results.append(Uploaded(run.folder, run.run_id or "", run.name, str(exc)))
                    continue
                # No part of the folder may look like a run while it is removed.
                gone = run.folder.with_name(f"{_WRITING}{processes.mark()}.{run.local_id}")
                os.rename(run.folder, gone)
                shutil.rmtree(gone, ignore_errors=True)
                results.append(Uploaded(run.folder, run_id, run.name))
    except filelock.Timeout:
        return []
    return results


def _upload_run(tracker: SpoolTarget, spool: Spool, run: SpooledRun, moved: bool) -> str:
    """Write a run to the store, and return its id there."""
    run.check()
    if run.store != tracker.shown and not moved:
        raise errors.ConfigError(
            f"It is meant for {run.store}, and this is {tracker.shown}. If the store moved here, use --moved."
        )
    parent = run.parent
    if parent is not None and is_local(parent):
        stored_parent = _find_run(tracker, parent)
        if stored_parent is None and parent in spool.being_written():
            raise errors.ConfigError(f"Its parent {parent} is still being written. Upload it when that has ended.")
        parent = parent if stored_parent is None else stored_parent.id
    stored_run = _find_run(tracker, run.local_id)
    manifest = run.files.peek(Artifact.MANIFEST)
    if stored_run is None and run.only_in_store:
        raise errors.RunNotFoundError(
            f"{tracker.shown} no longer has run {run.id}, and only it had {', '.join(run.only_in_store)}."
        )
    if stored_run is not None:
        if stored_run.status == "finished" and manifest == tracker.peek(stored_run.id, Artifact.MANIFEST) is not None:
            # An earlier upload was interrupted before the folder was removed.
            return stored_run.id
        if stored_run.tags.get(Tag.OWNER) != run.tags.get(Tag.OWNER):
            raise errors.LogError(
                f"Run {stored_run.id} was resumed by another process ({stored_run.tags.get(Tag.OWNER)}), and is "
                f"{stored_run.status}."
            )
    writer = tracker.create(
        run.experiment, run.name, tags=run.tags, parent=parent, began=run.start_time, may_exist=True
    )
    paths = sorted(run.artifacts, key=lambda path: (path == Artifact.MANIFEST, path))
    writer.restore(run.info(), {path: file for path in paths if (file := run.files.find(path)) is not None})
    return writer.id


def _find_run(tracker: SpoolTarget, local_id: str) -> RunInfo | None:
    with contextlib.suppress(errors.RunNotFoundError):
        return tracker.info(local_id)
    return None
