"""A tracker that keeps everything in memory: for tests, for trying things out, and as the shortest example of the contract.

It passes the same contract tests as the trackers over MLflow. Its runs are lost when it goes.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import types
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

from trtops import errors
from trtops.record import sha256
from trtops.tracking import owner
from trtops.tracking.base import ArtifactEntry, Manifest, MetricName, RunInfo, RunStatus, StoredRun
from trtops.tracking.ids import is_local, whole_id
from trtops.tracking.registry import RegisteredVersion, check_registration
from trtops.tracking.schema import Artifact, Kind, Tag
from trtops.tracking.writer import (
    RunReader,
    RunWriter,
    Scratch,
    check_reopening,
    checked_names,
    failure_note,
    read_manifest,
    starting_tags,
    without_dropped,
)


@dataclasses.dataclass
class _Kept:
    """What is kept of one run."""

    experiment: str
    name: str
    parent: str | None
    start_time: float
    status: RunStatus = "running"
    end_time: float | None = None
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    metrics: dict[MetricName, float] = dataclasses.field(default_factory=dict)
    artifacts: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def end(self, status: RunStatus, at: float | None = None) -> None:
        self.status, self.end_time = status, time.time() if at is None else at


class MemoryTracker:
    """A :class:`trtops.tracking.base.Tracker` in memory. Only this object has its runs.

    Artifacts of more than 1 GiB are in temporary files, which go with it.
    """

    shown = "The memory of this process"
    context: Mapping[str, str] = types.MappingProxyType({})
    store = None

    lock_folder: Path | None = None

    def __init__(self) -> None:
        self._runs: dict[str, _Kept] = {}
        self._versions: dict[str, list[RegisteredVersion]] = {}
        self._aliases: dict[str, dict[str, str]] = {}
        self._lock = threading.RLock()
        self._scratch = Scratch()

    def start(
        self,
        experiment: str,
        name: str,
        *,
        kind: Kind,
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
    ) -> MemoryRun:
        """Begin a run."""
        experiment, name = checked_names(experiment, name)
        return self.create(experiment, name, tags=starting_tags(kind, tags), parent=parent)

    def create(
        self,
        experiment: str,
        name: str,
        *,
        tags: Mapping[str, str],
        parent: str | None = None,
        began: float | None = None,
        known: bool = False,
    ) -> MemoryRun:
        """Make a run with exactly these tags."""
        with self._lock:
            if known and (earlier := self._with_local_id(tags[Tag.LOCAL_ID])) is not None:
                return self.rewrite(earlier)
            run_id = uuid.uuid4().hex
            kept = self._runs[run_id] = _Kept(experiment, name, parent, time.time() if began is None else began)
        run = MemoryRun(run_id, kept, self._lock)
        run.set_tags(tags)
        return run

    def rewrite(self, run_id: str) -> MemoryRun:
        """Write to a run whatever its state."""
        with self._lock:
            run_id = self._stored_id(run_id)
            kept = self._runs[run_id]
            kept.status, kept.end_time = "running", None
            for tag in (Tag.ERROR, Tag.VERDICT):
                kept.tags.pop(tag, None)
            return MemoryRun(run_id, kept, self._lock)

    def whole_id(self, run: str) -> str:
        """The id of a run as people give it."""
        return whole_id(run, self._beginning_with, self.shown)

    def info(self, run_id: str) -> RunInfo:
        """What is known of a run, complete or not."""
        with self._lock:
            run_id = self._stored_id(run_id)
            kept = self._runs[run_id]
            return RunInfo(
                id=run_id,
                experiment=kept.experiment,
                name=kept.name,
                parent=kept.parent,
                status=kept.status,
                start_time=kept.start_time,
                end_time=kept.end_time,
                tags=dict(kept.tags),
                params=dict(kept.params),
                metrics=dict(kept.metrics),
            )

    def load(self, run_id: str) -> StoredRun:
        """A whole run."""
        info, kept = self.info(run_id), self._kept(run_id)
        manifest = read_manifest(run_id, _in_memory(kept, Artifact.MANIFEST))
        return _MemoryStoredRun(info, manifest, kept, self._scratch.folder())

    def find(
        self,
        experiment: str | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
        status: RunStatus | None = None,
        limit: int | None = None,
    ) -> list[RunInfo]:
        """Runs that have all these tags, newest first."""
        wanted = (tags or {}).items()
        with self._lock:
            if parent is not None and is_local(parent):
                parent = self._with_local_id(parent) or parent
            found = [
                self.info(run_id)
                for run_id, kept in reversed(self._runs.items())
                if experiment in (None, kept.experiment)
                and parent in (None, kept.parent)
                and status in (None, kept.status)
                and wanted <= kept.tags.items()
            ]
        return found[:limit]

    def close(self, run_id: str, why: str) -> RunInfo:
        """End a run whose own process can no longer do it."""
        with self._lock:
            kept = self._kept(run_id)
            if kept.status == "running":
                whole = Artifact.MANIFEST in kept.artifacts
                if not whole:
                    kept.tags |= {Tag.ERROR: why, Tag.NOTE: failure_note(run_id, why)}
                kept.end("finished" if whole else "killed")
            return self.info(run_id)

    def reopen(self, run_id: str) -> MemoryRun:
        """Resume a run that was interrupted."""
        with self._lock:
            kept = self._kept(run_id)
            check_reopening(self.info(run_id), whole=Artifact.MANIFEST in kept.artifacts)
            run = self.rewrite(run_id)
            kept.tags[Tag.OWNER] = owner.current().to_json()
            entries = (
                ArtifactEntry(path=path, size=len(data), sha256=sha256(data)) for path, data in kept.artifacts.items()
            )
            run.take_over(entries, kept.metrics)
        return run

    def peek(self, run_id: str, path: str) -> bytes | None:
        """An artifact of a run that need not be whole."""
        with self._lock:
            return _in_memory(self._kept(run_id), path)

    def register(
        self, name: str, run_id: str, path: str, *, alias: str, tags: Mapping[str, str] | None = None
    ) -> RegisteredVersion:
        """Add a version and let an alias point to it."""
        check_registration(self, name, run_id, path, alias)
        with self._lock:
            versions = self._versions.setdefault(name, [])
            number = str(len(versions) + 1)
            version = RegisteredVersion(name=name, version=number, run_id=run_id, path=path, tags=dict(tags or {}))
            versions.append(version)
            self._aliases.setdefault(name, {})[alias] = number
        return version

    def registered(self, name: str, alias: str) -> RegisteredVersion | None:
        """The version that an alias points to."""
        with self._lock:
            number = self._aliases.get(name, {}).get(alias)
            return None if number is None else self._versions[name][int(number) - 1]

    def aliases(self, name: str) -> dict[str, str]:
        """A registered model's aliases, as names to version numbers."""
        with self._lock:
            return dict(self._aliases.get(name, {}))

    def accepted(self) -> list[tuple[str, RegisteredVersion]]:
        """Every alias of every registered model with the version that it points to."""
        with self._lock:
            return [
                (alias, self._versions[name][int(number) - 1])
                for name, aliases in self._aliases.items()
                for alias, number in aliases.items()
            ]

    def drop(self, run_id: str, paths: Collection[str], why: str) -> Manifest:
        """Remove artifacts of a whole run, and say so in its manifest."""
        with self._lock:
            kept = self._kept(run_id)
            manifest = without_dropped(self.load(run_id).manifest, paths, why)
            kept.artifacts[Artifact.MANIFEST] = manifest.to_json().encode("utf-8")
            for entry in manifest.dropped:
                kept.artifacts.pop(entry.artifact.path, None)
        return manifest

    def _beginning_with(self, digits: str, limit: int) -> list[RunInfo]:
        runs = self.find()
        found = [info for info in runs if info.id.startswith(digits)]
        return (found or [info for info in runs if info.tags.get(Tag.LOCAL_ID, "").startswith(digits)])[:limit]

    def _kept(self, run_id: str) -> _Kept:
        return self._runs[self._stored_id(run_id)]

    def _stored_id(self, run_id: str) -> str:
        """A run's id by its id or its local id."""
        if run_id in self._runs:
            return run_id
        stored = self._with_local_id(run_id) if is_local(run_id) else None
        if stored is None:
            raise errors.RunNotFoundError(f"No run has the id {run_id!r}. {errors.near(run_id, self._runs)}".rstrip())
        return stored

    def _with_local_id(self, local_id: str) -> str | None:
        return next((run_id for run_id, kept in self._runs.items() if kept.tags.get(Tag.LOCAL_ID) == local_id), None)


class MemoryRun(RunWriter):
    """A run in memory, being written."""

    def __init__(self, run_id: str, kept: _Kept, lock: threading.RLock) -> None:
        super().__init__(run_id, url="")
        self._kept = kept
        self._store_lock = lock

    def _put_params(self, params: Mapping[str, str]) -> None:
        with self._store_lock:
            for name, value in params.items():
                if (old := self._kept.params.get(name, value)) != value:
                    raise errors.LogError(
                        f"Param {name!r} of run {self.id} is {old!r} already; it cannot become {value!r}."
                    )
            self._kept.params.update(params)

    def _put_tags(self, tags: Mapping[str, str]) -> None:
        with self._store_lock:
            self._kept.tags.update(tags)

    def _put_metrics(self, metrics: Mapping[MetricName, float]) -> None:
        with self._store_lock:
            self._kept.metrics.update(metrics)

    def _put_artifact(self, source: Path | bytes, path: str) -> ArtifactEntry:
        data = source.read_bytes() if isinstance(source, Path) else bytes(source)
        with self._store_lock:
            self._kept.artifacts[path] = data
        return ArtifactEntry(path=path, size=len(data), sha256=sha256(data))

    def _end(self, status: RunStatus, at: float | None = None) -> None:
        with self._store_lock:
            self._kept.end(status, at)


def _in_memory(kept: _Kept, path: str) -> bytes | None:
    data = kept.artifacts.get(path)
    return None if data is None else bytes(data)


class _MemoryStoredRun(RunReader):
    def __init__(self, info: RunInfo, manifest: Manifest, kept: _Kept, folder: Path) -> None:
        super().__init__(info, manifest)
        self._kept = kept
        self._folder = folder

    def unlisted(self, path: str) -> bytes | None:
        return _in_memory(self._kept, path)

    def _fetch(self, entry: ArtifactEntry) -> Path | None:
        data = self._kept.artifacts.get(entry.path)
        if data is None:
            return None
        file = self._folder / sha256(data) / Path(entry.path).name
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(data)
        return file
