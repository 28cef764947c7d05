"""A tracker in memory, for tests and experiments. It passes the contract tests of the others."""

from __future__ import annotations

import threading
import time
import types
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtops import errors
from trtops.record import sha256
from trtops.tracking import owner, schema
from trtops.tracking.artifact_files import Scratch
from trtops.tracking.base import SearchableTracker
from trtops.tracking.reading import StoredRun, read_manifest, stated_end
from trtops.tracking.records import (
    ArtifactEntry,
    EngineQuery,
    RegisteredVersion,
    RunData,
    RunDetails,
    RunFilter,
    RunInfo,
    RunStatus,
    Tags,
    Values,
    check_registration,
    is_local,
)
from trtops.tracking.schema import Artifact, Kind, Tag
from trtops.tracking.writing import Run, check_reopening, failure_note, new_run


@dataclass(kw_only=True)
class _Data(RunData):
    """Everything about one run."""

    artifacts: dict[str, bytes] = field(default_factory=dict)
    history: dict[str, tuple[float, ...]] = field(default_factory=dict)  # values of metrics by metric_key


class MemoryTracker(SearchableTracker):
    """A :class:`trtops.tracking.base.Tracker` in memory. Only this object has its runs."""

    shown = "This process"
    context: Mapping[str, str] = types.MappingProxyType({})
    store = None
    lock_folder: Path | None = None

    def __init__(self) -> None:
        self._runs: dict[str, _Data] = {}
        self._versions: dict[str, list[RegisteredVersion]] = {}
        self._aliases: dict[str, dict[str, str]] = {}
        # One lock for all runs: the methods call each other, and searches must see whole runs.
        self._lock = threading.RLock()
        self._scratch = Scratch()

    def start(
        self, experiment: str, name: str, *, kind: Kind, tags: Tags | None = None, parent: str | None = None
    ) -> MemoryRun:
        experiment, name, first, params = new_run(experiment, name, kind, tags)
        run = self.create(experiment, name, tags=first, parent=parent)
        run.log_params(params)
        return run

    def create(
        self,
        experiment: str,
        name: str,
        *,
        tags: Tags,
        parent: str | None = None,
        began: float | None = None,
        may_exist: bool = False,
    ) -> MemoryRun:
        """Create a run with exactly these tags; ``may_exist`` allows an existing one, with any status."""
        with self._lock:
            if may_exist and (earlier := self._with_local_id(tags[Tag.LOCAL_ID])) is not None:
                return self._rewrite(earlier)
            run_id = uuid.uuid4().hex
            began = time.time() if began is None else began
            data = _Data(experiment=experiment, name=name, parent=parent, start_time=began, tags=dict(tags))
            self._runs[run_id] = data
            return MemoryRun(run_id, data, self._lock)

    def info(self, run_id: str) -> RunInfo:
        with self._lock:
            run_id = self._stored_id(run_id)
            return self._runs[run_id].info_as(run_id)

    def load(self, run_id: str) -> StoredRun:
        artifacts = self._data(run_id).artifacts

        def fetch(entry: ArtifactEntry) -> Path | None:
            if (data := artifacts.get(entry.path)) is None:
                return None
            file = self._scratch.folder() / run_id / entry.path
            if not file.exists() or file.read_bytes() != data:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
            return file

        def details() -> RunDetails:
            history = self._data(run_id).history
            return RunDetails(user=None, status=("", ""), history=history, files=tuple(artifacts))

        manifest = read_manifest(run_id, artifacts.get(Artifact.MANIFEST))
        return StoredRun(self.info(run_id), manifest, fetch, artifacts.get, self.load, details)

    def search(self, run_filter: RunFilter, limit: int | None) -> list[RunInfo]:
        with self._lock:
            if run_filter.parent is not None and is_local(run_filter.parent):
                parent = self._with_local_id(run_filter.parent) or run_filter.parent
                run_filter = replace(run_filter, parent=parent)
            return list(filter(run_filter.matches, map(self.info, reversed(self._runs))))[:limit]

    def all_runs(self) -> Iterator[tuple[RunInfo, str]]:
        return ((info, "") for info in self.find())

    def log_entries(self) -> tuple[dict[int, str], list[str]]:
        return {}, []

    def close(self, run_id: str, reason: str) -> RunInfo:
        with self._lock:
            data = self._data(run_id)
            if data.status == "running":
                manifest = data.artifacts.get(Artifact.MANIFEST)
                data.status, data.end_time = "finished", stated_end(manifest) or time.time()
                if manifest is None:
                    data.status = "killed"
                    data.tags |= {Tag.ERROR: reason, Tag.NOTE: failure_note(run_id, data.tags.get(Tag.KIND), reason)}
            return self.info(run_id)

    def reopen(self, run_id: str) -> MemoryRun:
        with self._lock:
            data = self._data(run_id)
            check_reopening(self.info(run_id), whole=Artifact.MANIFEST in data.artifacts)
            run = self._rewrite(self._stored_id(run_id))
            data.tags[Tag.OWNER] = owner.current().text()
            run.continue_from(
                ArtifactEntry(path=path, size=len(content), sha256=sha256(content))
                for path, content in data.artifacts.items()
            )
        return run

    def _rewrite(self, run_id: str) -> MemoryRun:
        """Write to a run whatever its status."""
        data = self._runs[run_id]
        data.status, data.end_time = "running", None
        for tag in (Tag.ERROR, Tag.VERDICT):
            data.tags.pop(tag, None)
        return MemoryRun(run_id, data, self._lock)

    def peek(self, run_id: str, path: str) -> bytes | None:
        with self._lock:
            return self._data(run_id).artifacts.get(path)

    def drop(self, run_id: str, paths: Collection[str]) -> None:
        with self._lock:
            artifacts = self._data(run_id).artifacts
            manifest = self.load(run_id).manifest.without(paths)
            artifacts[Artifact.MANIFEST] = manifest.to_json().encode("utf-8")
            for path in paths:
                artifacts.pop(path, None)

    def register(
        self, name: str, run_id: str, path: str, *, alias: str, also: str = "", tags: Tags | None = None
    ) -> RegisteredVersion:
        check_registration(name, alias)
        self.load(run_id).local_path(path)
        with self._lock:
            versions = self._versions.setdefault(name, [])
            number = str(len(versions) + 1)
            version = RegisteredVersion(name=name, version=number, run_id=run_id, path=path, tags=dict(tags or {}))
            versions.append(version)
            self._aliases.setdefault(name, {}).update(dict.fromkeys(filter(None, (alias, also)), number))
        return version

    def check_access(self, registered_model: str | None = None) -> None:
        """Allow everything: there are no accounts."""

    def registered(self, name: str, alias: str) -> RegisteredVersion | None:
        with self._lock:
            number = self._aliases.get(name, {}).get(alias)
            return None if number is None else self._versions[name][int(number) - 1]

    def aliases(self, name: str) -> dict[str, str]:
        with self._lock:
            return dict(self._aliases.get(name, {}))

    def accepted(self, tags: Tags | None = None) -> list[tuple[str, RegisteredVersion]]:
        accepted = []
        with self._lock:
            for name, aliases in self._aliases.items():
                for alias, number in aliases.items():
                    version = self._versions[name][int(number) - 1]
                    if (tags or {}).items() <= version.tags.items():
                        accepted.append((alias, version))
        return accepted

    def engines(self, query: EngineQuery, limit: int | None = None) -> list[tuple[RunInfo, float | None]]:
        raise errors.StoreError("Engines are searched by MLflow; give a store that it keeps.")

    def _data(self, run_id: str) -> _Data:
        return self._runs[self._stored_id(run_id)]

    def _stored_id(self, run_id: str) -> str:
        if run_id in self._runs:
            return run_id
        stored = self._with_local_id(run_id) if is_local(run_id) else None
        if stored is None:
            raise errors.RunNotFoundError(f"No run has the id {run_id!r}. {errors.near(run_id, self._runs)}".rstrip())
        return stored

    def _with_local_id(self, local_id: str) -> str | None:
        return next((run_id for run_id, data in self._runs.items() if data.tags.get(Tag.LOCAL_ID) == local_id), None)


class MemoryRun(Run):
    """A run in memory, being written."""

    outlives_process = False

    def __init__(self, run_id: str, data: _Data, lock: threading.RLock) -> None:
        super().__init__(run_id, url="")
        self._data = data
        self._store_lock = lock

    def _info(self) -> RunInfo:
        with self._store_lock:
            return self._data.info_as(self.id)

    def _put(self, values: Values) -> None:
        with self._store_lock:
            self._data.check_params(values)
            self._data.add(values)
            for name, value in values.metrics.items():
                key = schema.metric_key(name)
                self._data.history[key] = (*self._data.history.get(key, ()), value)

    def _put_artifact(self, source: Path | bytes, path: str) -> ArtifactEntry:
        data = source.read_bytes() if isinstance(source, Path) else bytes(source)
        with self._store_lock:
            self._data.artifacts[path] = data
        return ArtifactEntry(path=path, size=len(data), sha256=sha256(data))

    def _end(self, status: RunStatus, at: float | None = None) -> None:
        with self._store_lock:
            self._data.status, self._data.end_time = status, time.time() if at is None else at
