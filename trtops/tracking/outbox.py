"""An outbox: runs that their store could not take, kept on this machine until it can.

Each is a folder named by the id that the run's own process gave it::

    <local id>/
        run.json        what the run is, everything that was logged to it, and the SHA-256 of each artifact
        run.json.sha256 its own, as ``sha256sum -c`` reads it
        artifacts/      these, the manifest among them

A folder appears whole or not at all: it is written as ``.writing-<local id>`` and then renamed. It is its owner's alone
(mode 700), since a run may hold what is nobody else's business.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock

from trtops import errors
from trtops.record import sha256, sha256_file, to_jsonable
from trtops.tracking import owner
from trtops.tracking.base import ArtifactEntry, MetricName, RunInfo, RunStatus
from trtops.tracking.ids import is_local
from trtops.tracking.location import Store, default_root
from trtops.tracking.writer import check_path, write_artifact

_VERSION = 1
_WRITING = ".writing-"
_OWNER = "owner.json"
_RUN = "run.json"
_SHA256 = "run.json.sha256"
_ARTIFACTS = "artifacts"
_FORGOTTEN_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class KeptRun:
    """A run that has ended, with everything that was logged to it but the content of its artifacts.

    Attributes:
        store: Address of the store that it is meant for, without a password.
        run_id: Its id in that store; None if the store did not even make it.
        local_id: The id that its own process gave it.
        experiment: Name of its experiment.
        name: Its own name.
        parent: Id of its parent run, or None; a local one if the parent was kept too.
        status: How it ended.
        start_time: Seconds since the epoch.
        end_time: Likewise.
        tags: Its tags.
        params: Its params, as text.
        metrics: Its metrics.
        artifacts: Every artifact, the manifest included.
        only_there: Paths of those that the store has and this machine has not.
    """

    store: str
    run_id: str | None
    local_id: str
    experiment: str
    name: str
    parent: str | None
    status: RunStatus
    start_time: float
    end_time: float
    tags: Mapping[str, str] = field(repr=False)
    params: Mapping[str, str] = field(repr=False)
    metrics: Mapping[MetricName, float] = field(repr=False)
    artifacts: tuple[ArtifactEntry, ...] = field(repr=False)
    only_there: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id that the run had."""
        return self.run_id or self.local_id

    def info(self) -> RunInfo:
        """The run as a search returns it."""
        return RunInfo(
            id=self.id,
            experiment=self.experiment,
            name=self.name,
            parent=self.parent,
            status=self.status,
            start_time=self.start_time,
            end_time=self.end_time,
            tags=self.tags,
            params=self.params,
            metrics=self.metrics,
        )

    def to_json(self) -> bytes:
        """The run as ASCII JSON: names may hold what UTF-8 cannot."""
        plain: dict[str, Any] = {name: value for name, value in vars(self).items() if name != "metrics"}
        plain["artifacts"] = [entry.to_dict() for entry in self.artifacts]
        plain["metrics"] = [[list(name), to_jsonable(value)] for name, value in self.metrics.items()]
        return json.dumps({"version": _VERSION, **to_jsonable_dict(plain)}, indent=2, allow_nan=False).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes) -> KeptRun:
        """Read what :meth:`to_json` wrote.

        Raises:
            FormatError: If it is something else, of a later version, or names a path outside the run.
        """
        try:
            plain = json.loads(data)
            version = plain.pop("version")
            if version != _VERSION:
                raise errors.FormatError(f"Kept run: version {version}; expected {_VERSION}. Install a later trtops.")
            plain["artifacts"] = tuple(ArtifactEntry.from_dict(entry) for entry in plain["artifacts"])
            plain["metrics"] = {tuple(map(str, name)): float(value) for name, value in plain["metrics"]}
            plain["only_there"] = tuple(plain["only_there"])
            kept = cls(**plain)
            for entry in kept.artifacts:
                check_path(entry.path)
            if not is_local(kept.local_id) or not all(re.fullmatch("[0-9a-f]{32}", part) for part in kept._ids()):
                raise errors.FormatError("Kept run: its ids are none.")
        except errors.FormatError:
            raise
        except Exception as exc:  # whatever else a damaged file may lead to
            raise errors.FormatError(f"Kept run: not what was written ({type(exc).__name__}: {exc}).") from None
        return kept

    def _ids(self) -> Iterator[str]:
        return filter(None, (self.run_id, self.local_id, self.parent))


def to_jsonable_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON holds them."""
    plain = to_jsonable(values)
    assert isinstance(plain, dict)
    return plain


@dataclass(frozen=True)
class KeptFolder:
    """A folder of an outbox.

    Attributes:
        path: The folder.
        run: What it holds; None if it is damaged.
        why: How it is damaged.
    """

    path: Path
    run: KeptRun | None
    why: str = ""

    def file(self, path: str) -> Path | None:
        """The file with an artifact's content, or None if it is not on this machine."""
        check_path(path)
        file = self.path / _ARTIFACTS / path
        return file if file.is_file() else None

    def read(self, path: str) -> bytes | None:
        """An artifact's content, or None if it is not on this machine."""
        file = self.file(path)
        return None if file is None else file.read_bytes()

    def check(self) -> None:
        """Compare every file with its SHA-256.

        Raises:
            FormatError: If one is missing or changed.
        """
        if self.run is None:
            raise errors.FormatError(self.why)
        for entry in self.run.artifacts:
            if entry.path in self.run.only_there:
                continue
            file = self.file(entry.path)
            if file is None or sha256_file(file) != entry.sha256:
                found = "is gone" if file is None else f"has other content than {_RUN} says"
                raise errors.FormatError(f"{self.path / _ARTIFACTS / entry.path} {found}.")

    def remove(self) -> None:
        """Remove it, so that no part of it is ever taken for a run."""
        gone = self.path.with_name(f"{_WRITING}removed-{self.path.name}")
        os.rename(self.path, gone)
        shutil.rmtree(gone, ignore_errors=True)


class KeptDraft:
    """A folder of an outbox that is being written."""

    def __init__(self, place: Path, local_id: str) -> None:
        self._final = place / local_id
        self.folder = place / f"{_WRITING}{local_id}"
        _private_folder(place)
        (self.folder / _ARTIFACTS).mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(self.folder, 0o700)
        (self.folder / _OWNER).write_text(owner.current().to_json(), encoding="utf-8")

    def put(self, source: Path | bytes, path: str) -> ArtifactEntry:
        """Keep an artifact, whole or not at all.

        Raises:
            NoRoomError: If there is no room for it.
            LogError: If it cannot be written for another reason.
        """
        return write_artifact(source, self.folder / _ARTIFACTS / path, path)

    def file(self, path: str) -> Path | None:
        """An artifact that is kept, or None."""
        file = self.folder / _ARTIFACTS / path
        return file if file.is_file() else None

    def finish(self, run: KeptRun) -> Path:
        """Write what the run is, and let the folder appear.

        Raises:
            OSError: If it cannot be written.
        """
        data = run.to_json()
        _write_synced(self.folder / _RUN, data)
        _write_synced(self.folder / _SHA256, f"{sha256(data)}  {_RUN}\n".encode("ascii"))
        (self.folder / _OWNER).unlink()
        os.rename(self.folder, self._final)
        return self._final

    def drop(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Outbox:
    """Folders for runs that their store could not take; made when they are needed.

    Args:
        places: Where: the first one that can be written is used, all are read.
    """

    def __init__(self, places: Iterable[Path]) -> None:
        self.places = tuple(places)
        self._read: dict[Path, tuple[int, KeptFolder]] = {}

    def __reduce__(self) -> tuple[type[Outbox], tuple[tuple[Path, ...]]]:
        return type(self), (self.places,)

    def begin(self, local_id: str) -> KeptDraft:
        """Begin to keep a run.

        Raises:
            NoRoomError: If no place can be written.
        """
        reasons = []
        for place in self.places:
            try:
                return KeptDraft(place, local_id)
            except OSError as exc:
                reasons.append(f"{place}: {exc.strerror or exc}")
        raise errors.NoRoomError(f"Nothing can be kept on this machine ({'; '.join(reasons)}). Set TRTOPS_OUTBOX.")

    def folders(self) -> list[KeptFolder]:
        """Every folder there is, the oldest run first, damaged ones at the end."""
        found = [folder for place in self.places for folder in self._in(place)]
        return sorted(found, key=lambda folder: folder.run.start_time if folder.run else math.inf)

    def get(self, run_id: str) -> KeptFolder | None:
        """The folder of a run, by its id or its local id."""
        for folder in self.folders():
            if folder.run is not None and run_id in (folder.run.run_id, folder.run.local_id):
                return folder
        return None

    def is_being_written(self, local_id: str) -> bool:
        """Whether a process, still there, is writing a run into it."""
        return any(
            _is_ours(place) and (folder := place / f"{_WRITING}{local_id}").is_dir() and not _is_abandoned(folder)
            for place in self.places
        )

    def abandoned(self) -> list[Path]:
        """Folders that were begun by processes that are gone, and hold no whole run."""
        return [
            folder
            for place in self.places
            for folder in (place.glob(f"{_WRITING}*") if _is_ours(place) else ())
            if _is_abandoned(folder)
        ]

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Keep other processes from bringing in the same runs; yields whether nobody else is about it."""
        with contextlib.ExitStack() as stack:
            for place in filter(_is_ours, self.places):
                try:
                    stack.enter_context(filelock.FileLock(place / ".lock", blocking=False))
                except filelock.Timeout:
                    yield False
                    return
            yield True

    def _in(self, place: Path) -> Iterator[KeptFolder]:
        if not _is_ours(place):
            return
        for path in sorted(place.iterdir()):
            if path.name.startswith(".") or not path.is_dir():
                continue
            written = path.stat().st_mtime_ns
            known = self._read.get(path)
            if known is None or known[0] != written:
                known = self._read[path] = (written, _read_folder(path))
            yield known[1]


def default_outbox(store: Store | None) -> Outbox:
    """The outbox for a store: ``TRTOPS_OUTBOX``, or ``outbox`` under the root, or a folder for temporary files.

    Args:
        store: The embedded store; None for a server.
    """
    if (given := os.environ.get("TRTOPS_OUTBOX")) is not None:
        return Outbox([Path(given).absolute()])
    root = store.root if store is not None else default_root()
    return Outbox([root / "outbox", Path(tempfile.gettempdir()) / f"trtops-outbox-{os.getuid()}"])


def _read_folder(path: Path) -> KeptFolder:
    try:
        data = (path / _RUN).read_bytes()
        if (path / _SHA256).read_bytes() != f"{sha256(data)}  {_RUN}\n".encode("ascii"):
            raise errors.FormatError(f"{path / _RUN} has other content than {_SHA256} says.")
        run = KeptRun.from_json(data)
        if run.local_id != path.name:
            raise errors.FormatError(f"{path} holds another run than its name says.")
    except (OSError, errors.TrtopsError) as exc:
        return KeptFolder(path, None, str(exc))
    return KeptFolder(path, run)


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _private_folder(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(path):
        raise PermissionError(f"{path} is not a folder of this user's own")
    # One that cannot be written to should be found out now, and not with the first artifact.
    with tempfile.TemporaryFile(dir=path) as file:
        file.write(bytes(4096))
        file.flush()


def _is_ours(path: Path) -> bool:
    """Whether a folder is there and no other user's, who could put runs into it or read them."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _is_abandoned(folder: Path) -> bool:
    try:
        return owner.is_gone(owner.Owner.from_json((folder / _OWNER).read_text(encoding="utf-8")))
    except (OSError, errors.FormatError):
        return time.time() - folder.stat().st_mtime > _FORGOTTEN_SECONDS  # its first moments, or its last
