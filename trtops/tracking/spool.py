"""The spool: a folder of runs that their store could not take, uploaded later.

Each run is a folder named by its local id (:func:`trtops.tracking.ids.new_local_id`)::

    <local id>/
        run.json    all that was logged to the run, and the SHA-256 of each artifact
        artifacts/  the artifacts, with the manifest

A folder appears whole or not at all: it is written as ``.writing-<local id>`` and then renamed. The spool belongs to
one user (mode 700). A folder that another user owns or can write to is not used, since its runs would be uploaded as
one's own.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import filelock

from trtops import errors
from trtops.record import Record, sha256, sha256_file, to_jsonable
from trtops.system.files import sync_to_disk
from trtops.tracking import owner
from trtops.tracking.base import ArtifactEntry, MetricName, Run, RunInfo, RunStatus
from trtops.tracking.ids import is_local
from trtops.tracking.location import Store, default_root
from trtops.tracking.run import check_path, write_artifact
from trtops.tracking.schema import Artifact, Tag

if TYPE_CHECKING:
    from trtops.tracking.memory import MemoryTracker
    from trtops.tracking.mlflow import MlflowTracker

SpoolTarget: TypeAlias = "MlflowTracker | MemoryTracker"
"""A tracker that runs can be uploaded to: it can make and rewrite runs under the ids that they had."""

AWAY = (errors.TrackingUnavailableError, errors.NoRoomError)
"""The errors of a store that cannot take a run now."""

_WRITING = ".writing-"
_FORGOTTEN_SECONDS = 3600.0


@dataclass
class SpooledRun:
    """Everything that was logged to a run, except the content of its artifacts.

    Attributes:
        store: Address of its store, without a password.
        run_id: Its id in that store; None if the store did not make it.
        experiment: Name of its experiment.
        name: Its own name.
        parent: Id of its parent run, or None; a local id if the parent is in the spool too.
        start_time: Seconds since the epoch.
        tags: Its tags, the local id among them.
        params: Its params, as text.
        metrics: Its metrics.
        artifacts: Every artifact by path, the manifest included.
        status: How it ended, or ``running``.
        end_time: Seconds since the epoch.
        only_in_store: Paths of the artifacts that the store has and the spool does not.
        folder: Its folder in the spool, once it has ended.
    """

    store: str
    run_id: str | None
    experiment: str
    name: str
    parent: str | None
    start_time: float
    tags: dict[str, str]
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[MetricName, float] = field(default_factory=dict)
    artifacts: dict[str, ArtifactEntry] = field(default_factory=dict)
    status: RunStatus = "running"
    end_time: float | None = None
    only_in_store: tuple[str, ...] = ()
    folder: Path = Path()

    @property
    def local_id(self) -> str:
        """The id that the run's own process gave it."""
        return self.tags[Tag.LOCAL_ID]

    @property
    def id(self) -> str:
        """Its id in the store, or its local id."""
        return self.run_id or self.local_id

    def info(self) -> RunInfo:
        """The run as searches return it."""
        return RunInfo(
            id=self.id, experiment=self.experiment, name=self.name, parent=self.parent, status=self.status,
            start_time=self.start_time, end_time=self.end_time, tags=dict(self.tags), params=dict(self.params),
            metrics=dict(self.metrics),
        )  # fmt: skip

    def to_json(self) -> bytes:
        """The run as ASCII JSON, since names may contain what UTF-8 cannot."""
        plain: dict[str, Any] = {**vars(self), "artifacts": [entry.to_dict() for entry in self.artifacts.values()]}
        plain["metrics"] = [[list(name), value] for name, value in self.metrics.items()]
        del plain["folder"]
        return json.dumps(to_jsonable(plain), indent=2, allow_nan=False).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes, folder: Path = Path()) -> SpooledRun:
        """Read what :meth:`to_json` wrote.

        Raises:
            FormatError: If it is something else, or names a path outside the run.
        """
        try:
            plain = json.loads(data)
            entries = [ArtifactEntry.from_dict(entry) for entry in plain["artifacts"]]
            plain["artifacts"] = {entry.path: entry for entry in entries}
            plain["metrics"] = {tuple(map(str, name)): float(value) for name, value in plain["metrics"]}
            plain["only_in_store"] = tuple(plain["only_in_store"])
            run = cls(**plain, folder=folder)
            for entry in entries:
                check_path(entry.path)
            ids = filter(None, (run.run_id, run.local_id, run.parent))
            if not is_local(run.local_id) or not all(re.fullmatch("[0-9a-f]{32}", each) for each in ids):
                raise errors.FormatError("its ids are not 32 hexadecimal digits")
        except Exception as exc:  # a damaged file may lead to any error
            raise errors.FormatError(f"{folder}: run.json is damaged ({type(exc).__name__}: {exc}).") from None
        return run

    def file(self, path: str) -> Path | None:
        """The file with an artifact's content; None if it is not in the spool."""
        check_path(path)
        file = self.folder / "artifacts" / path
        return file if file.is_file() else None

    def read(self, path: str) -> bytes | None:
        """An artifact's content; None if it is not in the spool."""
        file = self.file(path)
        return None if file is None else file.read_bytes()

    def check(self) -> None:
        """Compare every file with its SHA-256.

        Raises:
            FormatError: If a file is missing or has changed.
        """
        for entry in self.artifacts.values():
            file = self.file(entry.path)
            if entry.path not in self.only_in_store and (file is None or sha256_file(file) != entry.sha256):
                found = "is missing" if file is None else "has other content than run.json says"
                raise errors.FormatError(f"{self.folder / 'artifacts' / entry.path} {found}.")

    def remove(self) -> None:
        """Remove the folder; no part of it can be taken for a run meanwhile."""
        gone = self.folder.with_name(f"{_WRITING}removed-{self.folder.name}")
        os.rename(self.folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


class Draft:
    """The folder of a run that is being written to the spool."""

    def __init__(self, spool: Path, local_id: str) -> None:
        self.folder = spool / f"{_WRITING}{local_id}"
        self._final = spool / local_id
        self.artifacts = self.folder / "artifacts"
        self.artifacts.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        (self.folder / "owner.json").write_text(owner.current().to_json(), encoding="utf-8")

    def put(self, source: Path | bytes, path: str) -> ArtifactEntry:
        """Store an artifact, whole or not at all.

        Raises:
            NoRoomError: If the disk is full.
            LogError: If it cannot be written for another reason.
        """
        return write_artifact(source, self.artifacts / path, path)

    def finish(self, run: SpooledRun) -> None:
        """Write the run's data, and give the folder its name.

        Raises:
            OSError: If it cannot be written.
        """
        (self.folder / "run.json").write_bytes(run.to_json())
        (self.folder / "owner.json").unlink()
        for place in (*self.folder.rglob("*"), self.folder):  # the name must not reach the disk before the content
            sync_to_disk(place)
        os.rename(self.folder, self._final)

    def remove(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Spool:
    """The spool folder; made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, local_id: str) -> Draft:
        """Begin to write a run.

        Raises:
            NoRoomError: If the folder cannot be written, or is not this user's own.
        """
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            if not self._is_ours():
                raise PermissionError(1, "it must be a folder that only this user owns and can write to")
            with tempfile.TemporaryFile(dir=self.folder) as file:  # find a full disk now, not with the first artifact
                file.write(bytes(4096))
                file.flush()
            return Draft(self.folder, local_id)
        except OSError as exc:
            raise errors.NoRoomError(
                f"Runs cannot be spooled to {self.folder}: {exc.strerror or exc}. Set TRTOPS_SPOOL to another folder."
            ) from exc

    def runs(self) -> list[SpooledRun]:
        """All undamaged runs, the oldest first."""
        found = [run for run in self._read_all() if isinstance(run, SpooledRun)]
        return sorted(found, key=lambda run: run.start_time)

    def damaged(self) -> list[tuple[Path, str]]:
        """Folders that cannot be read, each with the reason."""
        return [found for found in self._read_all() if not isinstance(found, SpooledRun)]

    def get(self, run_id: str) -> SpooledRun | None:
        """A run by its id or its local id."""
        return next((run for run in self.runs() if run_id in (run.run_id, run.local_id)), None)

    def is_being_written(self, local_id: str) -> bool:
        """True if a live process is writing a run."""
        folder = self.folder / f"{_WRITING}{local_id}"
        return self._is_ours() and folder.is_dir() and not _is_abandoned(folder)

    def abandoned(self) -> list[Path]:
        """Folders that processes that are gone did not finish."""
        return [path for path in self.folder.glob(f"{_WRITING}*") if _is_abandoned(path)] if self._is_ours() else []

    def _read_all(self) -> Iterator[SpooledRun | tuple[Path, str]]:
        for path in sorted(self.folder.iterdir()) if self._is_ours() else ():
            if not path.name.startswith(".") and path.is_dir():
                yield _read_folder(path, path.stat().st_mtime_ns)

    def _is_ours(self) -> bool:
        """True if the folder exists, and only this user owns it and can write to it."""
        try:
            found = self.folder.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def default_spool(store: Store | None) -> Spool:
    """The spool of a store: ``TRTOPS_SPOOL``; otherwise ``spool`` under the root for a server.

    An embedded store mostly cannot take a run because its disk is full, so its spool is in the folder for temporary
    files.

    Args:
        store: The embedded store; None for a server.
    """
    if given := os.environ.get("TRTOPS_SPOOL"):
        return Spool(Path(given).absolute())
    if store is None:
        return Spool(default_root() / "spool")
    name = f"trtops-spool-{os.getuid()}-{sha256(os.fsencode(store.database))[:8]}"
    return Spool(Path(tempfile.gettempdir(), name))


@functools.lru_cache(maxsize=1024)
def _read_folder(path: Path, modified: int) -> SpooledRun | tuple[Path, str]:
    try:
        run = SpooledRun.from_json((path / "run.json").read_bytes(), path)
        if run.local_id != path.name:
            raise errors.FormatError(f"{path} contains another run than its name says.")
    except (OSError, errors.FormatError) as exc:
        return path, str(exc)
    return run


def _is_abandoned(folder: Path) -> bool:
    try:
        return owner.is_gone(owner.Owner.from_json((folder / "owner.json").read_text(encoding="utf-8")))
    except (OSError, errors.FormatError):  # its first or last moments
        with contextlib.suppress(OSError):
            return time.time() - folder.stat().st_mtime > _FORGOTTEN_SECONDS
        return False


@dataclass(frozen=True, kw_only=True)
class Uploaded(Record):
    """The outcome for one run of the spool.

    Attributes:
        folder: Its folder in the spool.
        outcome: ``left`` if it could not be uploaded and is still in the spool.
        run_id: Its id in the store; empty if it has none.
        name: Its name; empty if it cannot be read.
        why: Why it was left.
    """

    folder: str
    outcome: Literal["uploaded", "left"]
    run_id: str = ""
    name: str = ""
    why: str = ""


def upload(tracker: SpoolTarget, spool: Spool, *, moved: bool = False) -> list[Uploaded]:
    """Upload the runs of a spool to their store. It can be interrupted and repeated at any time.

    A run that the store has made is completed under its id. Any other is made now; its local id keeps it from being
    made twice, and stays valid for reading. Runs are made from parents to children and completed from children to
    parents, so that a campaign is complete only after its iterations.

    Args:
        tracker: The store's own tracker.
        spool: The spool.
        moved: Whether to upload runs that were meant for another address, too.

    Returns:
        The outcome for each run; empty if another process is uploading.

    Raises:
        TrackingUnavailableError: If the store does not answer. The remaining runs stay in the spool.
        NoRoomError: If it has no space, likewise.
    """
    if not spool.runs() and not spool.damaged():
        return []
    try:
        with filelock.FileLock(spool.folder / ".lock", blocking=False):
            return [*_uploads(tracker, spool, moved)]
    except filelock.Timeout:
        return []


def _uploads(tracker: SpoolTarget, spool: Spool, moved: bool) -> Iterator[Uploaded]:
    for folder, why in spool.damaged():
        yield Uploaded(folder=str(folder), outcome="left", why=why)
    opened: list[tuple[SpooledRun, Run | None]] = []
    ids: dict[str, str] = {}

    def left(run: SpooledRun, exc: errors.TrtopsError) -> Uploaded:
        return Uploaded(folder=str(run.folder), outcome="left", run_id=run.run_id or "", name=run.name, why=str(exc))

    for run in spool.runs():
        try:
            run.check()
            if run.store != tracker.shown and not moved:
                raise errors.ConfigError(
                    f"It is meant for {run.store}, and this is {tracker.shown}. If the store moved here, use --moved."
                )
            parent = run.parent
            if parent is not None and is_local(parent) and parent not in ids:
                if (known := _find_run(tracker, parent)) is not None:
                    ids[parent] = known.id
                elif spool.is_being_written(parent):
                    raise errors.ConfigError(
                        f"Its parent {parent} is still being written. Upload it when that has ended."
                    )
            writer = _open_run(tracker, _with_ids(run, ids))
        except AWAY:
            raise
        except errors.TrtopsError as exc:
            yield left(run, exc)
            continue
        ids[run.local_id] = run.id if writer is None else writer.id
        opened.append((run, writer))
    for run, writer in reversed(opened):
        paths = sorted(run.artifacts, key=lambda path: (path == Artifact.MANIFEST, path))
        files = {path: file for path in paths if (file := run.file(path)) is not None}
        try:
            if writer is not None:
                writer.restore(_with_ids(run, ids).info(), files)
        except AWAY:
            raise
        except errors.TrtopsError as exc:
            yield left(run, exc)
            continue
        run.remove()
        yield Uploaded(folder=str(run.folder), outcome="uploaded", run_id=ids[run.local_id], name=run.name)


def _open_run(tracker: SpoolTarget, run: SpooledRun) -> Run | None:
    """A writer for the store's run, made if missing; None if the run is complete there."""
    known = _find_run(tracker, run.run_id) if run.run_id else None
    if known is None:
        if run.only_in_store:
            raise errors.RunNotFoundError(
                f"{tracker.shown} no longer has run {run.id}, and only it had {', '.join(run.only_in_store)}."
            )
        return tracker.create(
            run.experiment, run.name, tags=run.tags, parent=run.parent, began=run.start_time, known=True
        )
    manifest = run.read(Artifact.MANIFEST)
    if known.status == "finished" and manifest == tracker.peek(known.id, Artifact.MANIFEST) is not None:
        return None  # the upload was interrupted before the folder was removed
    if known.tags.get(Tag.OWNER) != run.tags.get(Tag.OWNER):
        raise errors.LogError(
            f"Run {known.id} was resumed by another process on {known.tags.get(Tag.HOST)}, and is {known.status}."
        )
    return tracker.rewrite(known.id)


def _find_run(tracker: SpoolTarget, run_id: str) -> RunInfo | None:
    with contextlib.suppress(errors.RunNotFoundError):
        return tracker.info(run_id)
    return None


def _with_ids(run: SpooledRun, ids: dict[str, str]) -> SpooledRun:
    """The run, naming other runs by the ids that the store gave them."""
    tags = {name: value if name == Tag.LOCAL_ID else ids.get(value, value) for name, value in run.tags.items()}
    return replace(run, tags=tags, parent=None if run.parent is None else ids.get(run.parent, run.parent))
