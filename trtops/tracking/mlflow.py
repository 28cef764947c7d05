"""Runs kept by MLflow: in an embedded store, or on a server. The only file that knows MLflow.

How MLflow is used, and why:

* One client with explicit run ids. The fluent API's active run is per thread and mixes up under asyncio.
* Metrics of a run have one timestamp, the run's start, and step 0, so that logging one twice adds nothing. MLflow shows
  the *larger* of two values with the same timestamp, so a changed one is logged a millisecond later.
* Artifacts of an embedded store are written straight into the run's folder, each whole or not at all; those of a server go
  through the client.
* Databases are never made, upgraded or trusted by opening them: :mod:`trtops.tracking.store` looks first.

MLflow is imported on first use (2 s).
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trtops import errors
from trtops.tracking import owner, schema
from trtops.tracking.base import ArtifactEntry, Manifest, MetricName, RunInfo, RunStatus, StoredRun
from trtops.tracking.registry import RegisteredVersion, check_registration, parse_source, source_of
from trtops.tracking.schema import Artifact, Tag
from trtops.tracking.store import Store, ensure_store, resolve
from trtops.tracking.store import default_tracker as default_tracker
from trtops.tracking.writer import (
    TEMPORARY,
    RunReader,
    RunWriter,
    Scratch,
    check_names,
    check_path,
    check_reopening,
    hash_file,
    read_manifest,
    starting_tags,
    write_artifact,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRunEntity

T = TypeVar("T")

_ATTEMPTS = 3
_PAGE = 1000
_BATCH_ITEMS = 100
_BATCH_BYTES = 600_000
"""MLflow's server takes 100 params or tags and 1 MB of JSON at a time."""

_STATUS: dict[str, RunStatus] = {
    "RUNNING": "running",
    "SCHEDULED": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "killed",
}
_PARENT = "mlflow.parentRunId"
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",
}


@functools.cache
def _mlflow() -> Any:
    """MLflow, imported so that it is quiet and calls nobody, and gives up on a lost server in half a minute."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import mlflow
    import mlflow.tracking.context.registry

    # It prints the stack of every database error that it then raises, and a line for every migration.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return mlflow


def release() -> str:
    """The installed MLflow's release."""
    return str(_mlflow().__version__)


@functools.cache
def known_revisions() -> tuple[str, ...]:
    """The revisions of the database schema that the installed MLflow knows, its own first."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(_mlflow().__file__).parent / "store" / "db_migrations"))
    return tuple(script.revision for script in scripts.walk_revisions())


def create_database(file: Path, artifacts: Path) -> None:
    """Make a database with the installed MLflow's schema and its default experiment under ``artifacts``. Takes seconds."""
    _mlflow()
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(f"sqlite:///{file}", str(artifacts))._dispose_engine()  # type: ignore[no-untyped-call]
    SqlAlchemyStore._engine_map.pop(f"sqlite:///{file}", None)


def upgrade_database(file: Path) -> None:
    """Bring a database to the installed MLflow's schema, in place."""
    _mlflow()
    import sqlalchemy
    from mlflow.store.db.utils import _upgrade_db

    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    try:
        _upgrade_db(engine)  # type: ignore[no-untyped-call]
    finally:
        engine.dispose()


def server_command(store: Store, port: int) -> tuple[list[str], dict[str, str]]:
    """The command that serves an embedded store and its UI on this machine, and the environment it needs."""
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", store.uri, "--artifacts-destination", str(store.artifacts)),
    ]
    return command, {**_QUIET, **os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


class MlflowTracker:
    """A :class:`trtops.tracking.base.Tracker` over an embedded store or a server.

    Safe to use from any thread, and from children made by ``fork``. Pickles as its location.

    Args:
        location: A folder, ``sqlite:///<file>``, or a server's ``http(s)://`` address; None for the default
            (:func:`trtops.tracking.store.default_location`). An embedded store is made if it is missing.

    Raises:
        StoreError: If the store cannot be used as it is.
    """

    def __init__(self, location: str | Path | Store | None = None) -> None:
        where = location if isinstance(location, Store) else resolve(location)
        self.store = ensure_store(where) if isinstance(where, Store) else None
        self.location = self.store.uri if self.store else str(where)
        self.shown = _without_password(self.location)
        mlflow = _mlflow()
        self._client: MlflowClient = mlflow.MlflowClient(tracking_uri=self.location, registry_uri=self.location)
        self._context: dict[str, str] = mlflow.tracking.context.registry.resolve_tags()
        self._pid = os.getpid()
        self._experiments: dict[str, str] = {}
        self.downloads = Scratch()

    def __repr__(self) -> str:
        return f"MlflowTracker({self.shown!r})"

    def __reduce__(self) -> tuple[type[MlflowTracker], tuple[str]]:
        return type(self), (self.location,)

    def start(
        self,
        experiment: str,
        name: str,
        *,
        kind: str,
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
    ) -> MlflowRun:
        """Begin a run."""
        check_names(experiment, name)
        all_tags = {**self._context, **_stored_tags(starting_tags(kind, tags))}
        if parent is not None:
            all_tags[_PARENT] = parent
        entity = self.call(self._client.create_run, self._experiment_id(experiment), tags=all_tags, run_name=name)
        try:
            return MlflowRun(self, entity, self._files(entity))
        except errors.StoreError:
            self.end(entity.info.run_id, "FAILED")
            raise

    def info(self, run_id: str) -> RunInfo:
        """What is known of a run, complete or not."""
        return self._info(self._entity(run_id))

    def load(self, run_id: str) -> StoredRun:
        """A whole run."""
        entity = self._entity(run_id)
        files = self._files(entity)
        manifest = read_manifest(run_id, files.manifest())
        return _MlflowStoredRun(self._info(entity), manifest, files)

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
        ids = self._all_experiments() if experiment is None else self._known_experiment(experiment)
        wanted = (tags or {}).items()
        found: list[RunInfo] = []
        for info in self._search(ids, _filter(tags or {}, parent, status), limit) if ids and limit != 0 else ():
            if wanted <= info.tags.items() and parent in (None, info.parent) and status in (None, info.status):
                found.append(info)
                if len(found) == limit:
                    break
        return found

    def close(self, run_id: str, why: str) -> RunInfo:
        """End a run whose own process can no longer do it."""
        entity = self._entity(run_id)
        if _STATUS[entity.info.status] == "running":
            files = self._files(entity)
            whole = files.manifest() is not None
            if not whole:
                self.log_batch(run_id, tags=_stored_tags({Tag.ERROR: why}))
            self.call(self._client.set_terminated, run_id, "FINISHED" if whole else "KILLED")
            files.sweep()
        return self.info(run_id)

    def reopen(self, run_id: str) -> MlflowRun:
        """Go on writing a run that was interrupted."""
        entity = self._entity(run_id)
        files, info = self._files(entity), self._info(entity)
        check_reopening(info, whole=files.manifest() is not None)
        self.log_batch(run_id, tags=_stored_tags({Tag.OWNER: owner.current().to_json(indent=None)}))
        for tag in {Tag.ERROR, Tag.VERDICT} & entity.data.tags.keys():
            self.call(self._client.delete_tag, run_id, tag)
        self.call(self._client.update_run, run_id, status="RUNNING")
        files.sweep()
        run = MlflowRun(self, entity, files)
        run.take_over(files.entries(), info.metrics)
        return run

    def peek(self, run_id: str, path: str) -> bytes | None:
        """An artifact of a run that need not be whole."""
        return self._files(self._entity(run_id)).peek(path)

    def register(
        self, name: str, run_id: str, path: str, *, alias: str, tags: Mapping[str, str] | None = None
    ) -> RegisteredVersion:
        """Add a version and let an alias point to it."""
        check_registration(self, name, run_id, path, alias)
        if self._registered_model(name) is None:
            try:
                self.call(self._client.create_registered_model, name)
            except errors.TrackingError:
                if self._registered_model(name) is None:  # otherwise somebody else has just made it
                    raise
        version = self.call(
            self._client.create_model_version, name, source_of(run_id, path), run_id, tags=_stored_tags(tags or {})
        )
        self.call(self._client.set_registered_model_alias, name, alias, version.version)
        return self._version(name, str(version.version))

    def registered(self, name: str, alias: str) -> RegisteredVersion | None:
        """The version that an alias points to."""
        number = self.aliases(name).get(alias)
        return None if number is None else self._version(name, number)

    def aliases(self, name: str) -> dict[str, str]:
        """A registered model's aliases, as names to version numbers."""
        model = self._registered_model(name)
        return {} if model is None else {alias: str(version) for alias, version in model.aliases.items()}

    def _registered_model(self, name: str) -> Any:
        try:
            return self.call(self._client.get_registered_model, name)
        except (errors.RunNotFoundError, errors.LogError):  # unknown, or a name that no model can have
            return None

    def _version(self, name: str, number: str) -> RegisteredVersion:
        version = self.call(self._client.get_model_version, name, number)
        run_id, path = parse_source(name, number, str(version.source))
        long = schema.long_texts(version.tags)
        tags = {
            _name(k, long): schema.whole_value(v, long) for k, v in version.tags.items() if not schema.is_internal(k)
        }
        return RegisteredVersion(name=name, version=number, run_id=run_id, path=path, tags=tags)

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call MLflow; what can be tried again is, what goes wrong is one of our errors.

        Raises:
            TrackingUnavailableError: If the store was locked, or the server not there, every time.
            TrackingError: Another one, for whatever else MLflow raises.
        """
        import requests
        from mlflow.exceptions import MlflowException

        self._mind_fork()
        for attempt in range(_ATTEMPTS):
            try:
                return function(*args, **kwargs)
            except (MlflowException, requests.RequestException) as exc:
                error = _translated(exc, self.shown)
                if not error.transient or attempt == _ATTEMPTS - 1:
                    raise error from exc
            time.sleep(0.2 * 4**attempt)
        raise AssertionError("unreachable")

    def log_batch(
        self,
        run_id: str,
        *,
        metrics: Mapping[str, tuple[float, int]] | None = None,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Log what is already in MLflow's terms; metrics as value and timestamp in milliseconds."""
        from mlflow.entities import Metric, Param, RunTag

        # Tags hold the rest of whatever was cut elsewhere, so they go first.
        for tag_batch in _batches(tags or {}):
            self.call(self._client.log_batch, run_id, tags=[RunTag(k, v) for k, v in tag_batch])
        for param_batch in _batches(params or {}):
            self.call(self._client.log_batch, run_id, params=[Param(k, v) for k, v in param_batch])
        if metrics:
            self.call(self._client.log_batch, run_id, metrics=[Metric(k, v, t, 0) for k, (v, t) in metrics.items()])

    def end(self, run_id: str, status: str) -> None:
        """Set how a run ended, in MLflow's terms."""
        self.call(self._client.set_terminated, run_id, status)

    def give_reserve(self) -> None:
        """Give reserved space back to a full disk, where it is ours to give."""
        if self.store:
            self.store.give_reserve()

    def _mind_fork(self) -> None:
        """Forget the database connections that a child inherited: SQLite's cannot be shared."""
        if self._pid != os.getpid():
            engine = getattr(self._client._tracking_client.store, "engine", None)
            if engine is not None:
                engine.dispose(close=False)
            self._pid = os.getpid()

    def _entity(self, run_id: str) -> MlflowRunEntity:
        if not (run_id.isascii() and run_id.isalnum()):
            raise _no_run(run_id, self.shown)
        try:
            return self.call(self._client.get_run, run_id)
        except errors.RunNotFoundError:
            raise _no_run(run_id, self.shown) from None

    def _experiment_id(self, name: str) -> str:
        known = self._experiments.get(name) or next(iter(self._known_experiment(name)), None)
        if known is not None:
            return known
        place = str(self.store.artifacts_of(name)) if self.store else None
        try:
            self.call(self._client.create_experiment, name, artifact_location=place)
        except errors.TrackingError:
            # Another process may have made it in the meantime, which MLflow's clients cannot prevent.
            if not self._known_experiment(name):
                raise
        return self._known_experiment(name)[0]

    def _known_experiment(self, name: str) -> list[str]:
        experiment = self.call(self._client.get_experiment_by_name, name)
        if experiment is None:
            return []
        if experiment.lifecycle_stage != "active":
            raise errors.StoreError(
                f"Experiment {name!r} of {self.shown} was deleted. Restore it: mlflow experiments restore "
                f"--experiment-id {experiment.experiment_id}"
            )
        self._experiments[name] = experiment.experiment_id
        return [experiment.experiment_id]

    def _all_experiments(self) -> list[str]:
        token, ids = None, []
        while True:
            page = self.call(self._client.search_experiments, max_results=_PAGE, page_token=token)
            self._experiments.update({experiment.name: experiment.experiment_id for experiment in page})
            ids += [experiment.experiment_id for experiment in page]
            token = page.token
            if not token:
                return ids

    def _experiment_name(self, experiment_id: str) -> str:
        for name, known in list(self._experiments.items()):
            if known == experiment_id:
                return name
        name = str(self.call(self._client.get_experiment, experiment_id).name)
        self._experiments[name] = experiment_id
        return name

    def _search(self, experiment_ids: list[str], query: str, limit: int | None) -> Iterator[RunInfo]:
        # MLflow spends a millisecond on each run it returns, wanted or not.
        size = _PAGE if limit is None else min(_PAGE, max(limit, 20))
        token = None
        while True:
            page = self.call(
                self._client.search_runs,
                experiment_ids,
                query,
                max_results=size,
                order_by=["attributes.start_time DESC"],
                page_token=token,
            )
            yield from map(self._info, page)
            token = page.token
            if not token:
                return

    def _info(self, entity: MlflowRunEntity) -> RunInfo:
        info, stored = entity.info, entity.data.tags
        long = schema.long_texts(stored)
        end_time = info.end_time
        return RunInfo(
            id=info.run_id,
            experiment=self._experiment_name(info.experiment_id),
            name=info.run_name or "",
            parent=stored.get(_PARENT),
            status=_STATUS[info.status],
            start_time=info.start_time / 1000,
            end_time=None if end_time is None or info.status == "RUNNING" else end_time / 1000,
            tags={_name(k, long): schema.whole_value(v, long) for k, v in stored.items() if not schema.is_internal(k)},
            params={_name(k, long): schema.whole_value(v, long) for k, v in entity.data.params.items()},
            metrics={_metric_name(k, long): schema.read_number(k, v, stored) for k, v in entity.data.metrics.items()},
            url=self.url(info.experiment_id, info.run_id),
        )

    def url(self, experiment_id: str, run_id: str) -> str:
        """A run's page: whole for a server, from the ``#`` on for an embedded store, whose UI may run anywhere."""
        return f"{'' if self.store else self.shown + '/'}#/experiments/{experiment_id}/runs/{run_id}"

    def _files(self, entity: MlflowRunEntity) -> _Files:
        uri, run_id = entity.info.artifact_uri, entity.info.run_id
        address = urllib.parse.urlparse(uri)
        if self.store and address.scheme == "mlflow-artifacts":
            # Logged through the server that `trtops.tracking.store.serve` puts before this store.
            return _LocalFiles(self.store.artifacts / address.path.lstrip("/"))
        if address.scheme not in ("", "file"):
            return _RemoteFiles(self, self._client, run_id)
        if self.store is None:
            raise errors.StoreError(
                f"Run {run_id} of {self.shown} keeps its artifacts at {uri!r}, a path on the server's own disk. "
                "Start the server with --artifacts-destination, and make the experiment through it."
            )
        return _LocalFiles(Path(urllib.parse.unquote(address.path) if address.scheme else uri))


class MlflowRun(RunWriter):
    """A run kept by MLflow, being written."""

    def __init__(self, tracker: MlflowTracker, entity: MlflowRunEntity, files: _Files) -> None:
        super().__init__(entity.info.run_id, tracker.url(entity.info.experiment_id, entity.info.run_id))
        self._tracker = tracker
        self._files = files
        self._started = int(entity.info.start_time)
        tags = entity.data.tags
        self._metrics: dict[str, tuple[float, int]] = {
            m.key: (schema.read_number(m.key, m.value, tags), int(m.timestamp)) for m in entity.data._metric_objs
        }

    def _put_params(self, params: Mapping[str, str]) -> None:
        stored: dict[str, str] = {}
        tags: dict[str, str] = {}
        for name, value in params.items():
            shown, rest = schema.shown_value(f"Param {name!r}", value, schema.MAX_PARAM)
            stored[schema.key(name)] = shown
            tags |= rest | schema.key_pieces(name)
        self._tracker.log_batch(self.id, params=stored, tags=tags)

    def _put_tags(self, tags: Mapping[str, str]) -> None:
        self._tracker.log_batch(self.id, tags=_stored_tags(tags))

    def _put_metrics(self, metrics: Mapping[MetricName, float]) -> None:
        changed: dict[str, tuple[float, int]] = {}
        tags: dict[str, str] = {}
        for name, value in metrics.items():
            key = schema.metric_key(name)
            before, at = self._metrics.get(key, (None, self._started - 1))
            if before is not None and _same(before, value):
                continue
            changed[key] = (value, at + 1)
            tags |= schema.name_pieces(name)
            if abs(value) == schema.MAX_FLOAT or (before is not None and abs(before) == schema.MAX_FLOAT):
                tags[schema.finite_tag(key)] = str(abs(value) == schema.MAX_FLOAT).lower()
        stored = {key: (schema.stored_number(value), at) for key, (value, at) in changed.items()}
        self._tracker.log_batch(self.id, metrics=stored, tags=tags)
        self._metrics.update(changed)

    def _put_artifact(self, source: Path | bytes, path: str) -> ArtifactEntry:
        return self._files.put(source, path)

    def _end(self, status: RunStatus) -> None:
        self._tracker.end(self.id, status.upper())

    def _put_failure(self, tags: Mapping[str, str]) -> None:
        try:
            super()._put_failure(tags)
        except errors.LogError:  # the disk may be full to the last byte
            self._tracker.give_reserve()
            super()._put_failure(tags)


class _Files(Protocol):
    """The artifacts of one run."""

    def put(self, source: Path | bytes, path: str) -> ArtifactEntry:
        """Store an artifact, whole or not at all."""
        ...

    def get(self, entry: ArtifactEntry) -> Path | None:
        """A local file that should hold an artifact, or None if there is none."""
        ...

    def manifest(self) -> bytes | None:
        """The manifest's bytes, or None if there is none."""
        ...

    def peek(self, path: str) -> bytes | None:
        """The bytes that an artifact has now, or None if there is none."""
        ...

    def entries(self) -> list[ArtifactEntry]:
        """Every artifact that there is, whole, whatever a manifest says."""
        ...

    def sweep(self) -> None:
        """Remove what an interrupted writer left."""
        ...


class _LocalFiles:
    """Artifacts of an embedded store: the run's folder itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, source: Path | bytes, path: str) -> ArtifactEntry:
        return write_artifact(source, self._folder / path, path)

    def get(self, entry: ArtifactEntry) -> Path | None:
        file = self._folder / entry.path
        return file if file.is_file() else None

    def manifest(self) -> bytes | None:
        return self.peek(Artifact.MANIFEST)

    def peek(self, path: str) -> bytes | None:
        check_path(path)
        file = self._folder / path
        return file.read_bytes() if file.is_file() else None

    def entries(self) -> list[ArtifactEntry]:
        files = (file for file in self._folder.rglob("*") if file.is_file() and not file.name.startswith(TEMPORARY))
        return [
            ArtifactEntry(
                path=file.relative_to(self._folder).as_posix(), size=file.stat().st_size, sha256=hash_file(file)
            )
            for file in files
        ]

    def sweep(self) -> None:
        for leftover in self._folder.rglob(f"{TEMPORARY}*"):
            leftover.unlink(missing_ok=True)


class _RemoteFiles:
    """Artifacts of a server, through its client. The server makes each appear whole."""

    def __init__(self, tracker: MlflowTracker, client: MlflowClient, run_id: str) -> None:
        self._tracker = tracker
        self._client = client
        self._run_id = run_id

    def put(self, source: Path | bytes, path: str) -> ArtifactEntry:
        # The client gives an artifact the name of the file, so the file must have the artifact's.
        name = PurePosixPath(path)
        with tempfile.TemporaryDirectory(prefix="trtops-") as folder:
            file = Path(folder) / name.name
            if isinstance(source, Path):
                file.symlink_to(source.resolve())
            else:
                file.write_bytes(source)
            entry = ArtifactEntry(path=path, size=file.stat().st_size, sha256=hash_file(file))
            parent = None if name.parent == PurePosixPath() else str(name.parent)
            self._tracker.call(self._client.log_artifact, self._run_id, str(file), parent)
        return entry

    def get(self, entry: ArtifactEntry) -> Path | None:
        return self._download(entry.path, entry.sha256)

    def manifest(self) -> bytes | None:
        return self.peek(Artifact.MANIFEST)

    def peek(self, path: str) -> bytes | None:
        check_path(path)
        if all(item.path != path for item in self._list(path.rpartition("/")[0])):
            return None
        file = self._download(path, self._run_id, again=True)
        return file.read_bytes() if file else None

    def entries(self) -> list[ArtifactEntry]:
        entries, folders = [], [""]
        while folders:
            for item in self._list(folders.pop()):
                if item.is_dir:
                    folders.append(item.path)
                elif (file := self._download(item.path, self._run_id, again=True)) is not None:
                    size = file.stat().st_size
                    entries.append(ArtifactEntry(path=item.path, size=size, sha256=hash_file(file)))
        return entries

    def _list(self, folder: str) -> list[Any]:
        return list(self._tracker.call(self._client.list_artifacts, self._run_id, folder or None))

    def _download(self, path: str, key: str, *, again: bool = False) -> Path | None:
        """Fetch an artifact, whole or not at all, unless one that was fetched under the same key will do."""
        file = self._tracker.downloads.folder() / key / path
        if file.is_file() and not again:
            return file
        with tempfile.TemporaryDirectory(dir=self._tracker.downloads.folder()) as folder:
            try:
                fetched = self._tracker.call(self._client.download_artifacts, self._run_id, path, folder)
            except (errors.RunNotFoundError, errors.LogError):
                return None
            file.parent.mkdir(parents=True, exist_ok=True)
            os.replace(fetched, file)
        return file

    def sweep(self) -> None:
        """Nothing: the server's own uploads are its own."""


class _MlflowStoredRun(RunReader):
    def __init__(self, info: RunInfo, manifest: Manifest, files: _Files) -> None:
        super().__init__(info, manifest)
        self._files = files

    def _fetch(self, entry: ArtifactEntry) -> Path | None:
        return self._files.get(entry)


def _stored_tags(tags: Mapping[str, str]) -> dict[str, str]:
    stored: dict[str, str] = {}
    for name, value in tags.items():
        shown, rest = schema.shown_value(f"Tag {name!r}", value, schema.MAX_TAG)
        stored |= rest | schema.key_pieces(name) | {schema.key(name): shown}
    return stored


def _batches(items: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    """Items in groups that fit into one request, each character counted as the six bytes that JSON may need."""
    batch: list[tuple[str, str]] = []
    size = 0
    for key, value in items.items():
        bytes_ = 6 * (len(key) + len(value)) + 32
        if batch and (len(batch) == _BATCH_ITEMS or size + bytes_ > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((key, value))
        size += bytes_
    if batch:
        yield batch


def _filter(tags: Mapping[str, str], parent: str | None, status: RunStatus | None) -> str:
    """A search that finds at least the runs wanted. MLflow's language can quote neither every key nor every value."""
    wanted = {schema.key(name): value for name, value in tags.items()}
    if parent is not None:
        wanted[_PARENT] = parent
    conditions = [
        f"tags.`{key}` = '{value}'"
        for key, value in wanted.items()
        if value and len(value) < schema.MAX_TAG and value.isprintable() and not set("'\"`\\") & set(value)
    ]
    if status is not None:
        conditions.append(f"attributes.status = '{status.upper()}'")
    return " and ".join(conditions)


def _name(key: str, long: Mapping[str, str]) -> str:
    try:
        return schema.name(key, long)
    except errors.FormatError:
        return key  # logged by somebody else


def _metric_name(key: str, long: Mapping[str, str]) -> MetricName:
    try:
        return schema.metric_name(key, long)
    except errors.FormatError:
        return tuple(key.split("/"))  # logged by somebody else


def _same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def _no_run(run_id: str, location: str) -> errors.RunNotFoundError:
    return errors.RunNotFoundError(
        f"{location} has no run with the id {run_id!r}. Expected 32 hexadecimal digits of a run in it."
    )


def _translated(exc: Exception, location: str) -> errors.TrackingError:
    """MLflow's exception, or its HTTP client's, as one of ours."""
    text, code = _without_password(str(exc)), getattr(exc, "error_code", "")
    if "disk is full" in text or "No space left" in text:
        return errors.LogError(f"{location} could not be written: the disk is full. Make room and run again.")
    if code == "RESOURCE_DOES_NOT_EXIST":
        return errors.RunNotFoundError(f"{location}: {text}")
    if code == "INVALID_PARAMETER_VALUE":
        return errors.LogError(f"{location} refused it: {text}")
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return errors.StoreError(
            f"{location} let nobody in: {text} Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
        )
    if _is_transient(exc, text, code):
        return errors.TrackingUnavailableError(f"{location} did not answer: {text:.500} Try again when it does.")
    response = getattr(exc, "response", None)
    if response is not None:
        return errors.LogError(f"{location} answered {response.status_code}: {text:.500}")
    return errors.StoreError(f"{location}: {text:.500}")


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]*@", "://", text)


def _is_transient(exc: Exception, text: str, code: str) -> bool:
    import requests

    if isinstance(exc, (requests.ConnectionError, requests.Timeout)):
        return True
    if isinstance(exc, requests.HTTPError):
        return exc.response is not None and exc.response.status_code in (429, 502, 503, 504)
    if "API request to" in text and ("failed with exception" in text or "timeout exception" in text):
        return True
    return code == "TEMPORARILY_UNAVAILABLE" and "unable to open" not in text and "readonly" not in text
