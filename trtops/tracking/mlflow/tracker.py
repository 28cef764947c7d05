"""The tracker over an embedded store or a server: runs and experiments in MLflow's terms."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtops import errors
from trtops.system.masking import masked
from trtops.tracking import owner, schema
from trtops.tracking.base import SearchableTracker
from trtops.tracking.location import Store
from trtops.tracking.mlflow.artifacts import Files, check_id, files_of
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.mlflow.derived import derived_facts
from trtops.tracking.mlflow.engines import Engines
from trtops.tracking.mlflow.installed import run_context
from trtops.tracking.mlflow.logged_models import output_of
from trtops.tracking.mlflow.store_log import EXPERIMENT, StoreLog
from trtops.tracking.mlflow.views import experiment_tags
from trtops.tracking.reading import StoredRun, read_manifest, stated_end
from trtops.tracking.records import (
    ArtifactEntry,
    EngineQuery,
    RegisteredVersion,
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
from trtops.tracking.store_log import Event, run_facts
from trtops.tracking.writing import Run, check_reopening, error_text, failure_note, new_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRunEntity

log = logging.getLogger(__name__)

T = TypeVar("T")

_ACTIVE, _ALL = 1, 3  # MLflow's ViewType
_PAGE = 1000
_PARENT = "mlflow.parentRunId"


class MlflowTracker(SearchableTracker):
    """A :class:`trtops.tracking.base.Tracker` over an embedded store or a server (:mod:`trtops.tracking.location`).

    Safe to use from any thread, and from children made by ``fork``. Pickles as its location. An embedded store is made
    if it is missing.
    """

    def __init__(self, location: str | Path | Store | None = None) -> None:
        self._connection = Connection(location)
        self._call = self._connection.call
        self.store = self._connection.store
        self.lock_folder = self.store.locks if self.store else None
        self.shown = self._connection.shown
        self.log = StoreLog(self._connection, self._pages)
        self.log_entries = self.log.entries
        self.linked_engines = Engines(self._connection, self._pages)
        self._experiments: dict[str, str] = {}

    @property
    def _client(self) -> MlflowClient:
        return self._connection.client

    @functools.cached_property
    def context(self) -> Mapping[str, str]:
        """MLflow's context tags for every run of this process."""
        return run_context()

    def __repr__(self) -> str:
        return f"MlflowTracker({self.shown!r})"

    def __reduce__(self) -> tuple[type[MlflowTracker], tuple[str]]:
        return type(self), (self._connection.location,)

    def start(
        self, experiment: str, name: str, *, kind: Kind, tags: Tags | None = None, parent: str | None = None
    ) -> MlflowRun:
        experiment, name, first, params = new_run(experiment, name, kind, tags)
        run = self.create(experiment, name, tags={**self.context, **first}, parent=parent)
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
    ) -> MlflowRun:
        """Create a run with exactly these tags; ``may_exist`` allows an existing one, with any status."""
        stored = {**tags} if parent is None else {**tags, _PARENT: parent}
        experiment_id, start = self._experiment_id(experiment), None if began is None else round(1000 * began)
        attempted = may_exist

        def make(_experiment: str) -> MlflowRunEntity:  # which a message about a missing permission names
            # If the answer of an attempt is lost, the next one finds the run.
            nonlocal attempted
            if attempted and (earlier := self._with_local_id([experiment_id], tags[Tag.LOCAL_ID])) is not None:
                return earlier
            attempted = True
            return self._client.create_run(experiment_id, start_time=start, tags=stored, run_name=name)

        entity = self._call(make, experiment)
        try:
            files = self._files(entity)
        except errors.StoreError:
            # Its artifacts would be on the disk of a server.
            self._connection.end(entity.info.run_id, "FAILED")
            raise
        return self._rewrite(entity) if may_exist else MlflowRun(self, entity, files)

    def info(self, run_id: str) -> RunInfo:
        return self._info(self._entity(run_id))

    def load(self, run_id: str) -> StoredRun:
        entity = self._entity(run_id)
        files = self._files(entity)
        manifest = read_manifest(run_id, files.peek(Artifact.MANIFEST))
        info, details = self._info(entity), functools.partial(self._details, entity, files)
        return StoredRun(info, manifest, files.get, files.peek, self.load, details)

    def search(self, run_filter: RunFilter, limit: int | None) -> list[RunInfo]:
        ids, parent = self._experiment_ids(run_filter.experiment), run_filter.parent
        if not ids or limit == 0:
            return []
        if parent is not None and is_local(parent):
            parent_run = self._with_local_id(self._all_experiments(), parent)
            parent = parent if parent_run is None else parent_run.info.run_id
        run_filter = replace(run_filter, experiment=None, parent=parent)
        query, order, infos = _query(run_filter), ["attributes.start_time DESC"], list[RunInfo]()
        # MLflow takes a millisecond for each run that it returns, so pages are no larger than needed.
        size = _PAGE if limit is None else min(_PAGE, max(limit, 20))
        for entity in self._pages(self._client.search_runs, ids, query, size=size, order_by=order):
            try:
                info = self._info(entity)
            except errors.IncompleteRunError as exc:
                log.warning("Skipped: %s", exc)
                continue
            if run_filter.matches(info):  # the query may find more
                infos.append(info)
            if len(infos) == limit:
                break
        return infos

    def all_runs(self) -> Iterator[tuple[RunInfo, str]]:
        ids = self._all_experiments(deleted=True)
        for entity in self._pages(self._client.search_runs, ids, run_view_type=_ALL) if ids else ():
            with contextlib.suppress(errors.IncompleteRunError):
                if entity.info.experiment_id in ids:
                    yield self._info(entity), entity.info.artifact_uri or ""

    def close(self, run_id: str, reason: str) -> RunInfo:
        entity = self._entity(run_id)
        run_id = entity.info.run_id
        if _read_status(entity.info.status, entity.data.tags) == "running":
            files = self._files(entity)
            manifest = files.peek(Artifact.MANIFEST)
            whole = manifest is not None
            if not whole:
                tags = {
                    Tag.ERROR: error_text(reason),
                    Tag.NOTE: failure_note(run_id, entity.data.tags.get(Tag.KIND), reason),
                }
                self._connection.log_batch(run_id, tags=tags)
            info = replace(self._info(entity), status="finished" if whole else "killed")
            self.end(info, files, stated_end(manifest), event="closed")
            files.sweep()
        return self.info(run_id)

    def end(self, info: RunInfo, files: Files, at: float | None, event: Event = "ended") -> None:
        """Add the end of a run to the log before storing its status, so every finished run is in the log."""
        info = replace(info, end_time=round(at or time.time(), 3))
        finished = info.status == "finished"
        signature = files.peek(Artifact.SIGNATURE) if finished else None
        model = self.linked_engines.record(info.id, files) if finished else None
        self.log.append(event, info.id, {**run_facts(info, signature), "logged model": model})
        self._connection.end(info.id, _shown_status(info.status, info.tags.get(Tag.VERDICT)), info.end_time)

    def reopen(self, run_id: str) -> MlflowRun:
        entity = self._entity(run_id)
        files, info = self._files(entity), self._info(entity)
        check_reopening(info, whole=files.peek(Artifact.MANIFEST) is not None)
        self._connection.log_batch(info.id, tags={Tag.OWNER: owner.current().text()})
        run = self._rewrite(entity)
        run.continue_from(files.entries())
        return run

    def _rewrite(self, entity: MlflowRunEntity) -> MlflowRun:
        """Write to a run whatever its status."""
        run_id, files = entity.info.run_id, self._files(entity)
        for tag in {Tag.ERROR, Tag.VERDICT, Tag.MANIFEST_SHA256} & entity.data.tags.keys():
            self._call(self._client.delete_tag, run_id, tag)
            del entity.data.tags[tag]
        self._call(self._client.update_run, run_id, status="RUNNING")
        files.sweep()
        return MlflowRun(self, entity, files)

    def _details(self, entity: MlflowRunEntity, files: Files) -> RunDetails:
        history = {}
        for key in entity.data.metrics:
            metrics = self._call(self._client.get_metric_history, entity.info.run_id, key)
            metrics = sorted(metrics, key=lambda metric: metric.timestamp)
            history[key] = tuple(schema.read_number(metric.value) for metric in metrics)
        status = entity.info.status, _shown_status("finished", entity.data.tags.get(Tag.VERDICT))
        manifest = read_manifest(entity.info.run_id, files.peek(Artifact.MANIFEST))
        inputs = [str(model.model_id) for model in entity.inputs.model_inputs] if entity.inputs else []
        model = output_of(entity) or next(iter(inputs), None)
        derived_arguments = self._connection, self.linked_engines, entity, files, manifest
        derived, unverified = derived_facts(*derived_arguments)
        if any(stored != stated for stored, stated in derived.values()):
            # Several calls read them. Between two of them another process may have logged or registered something.
            derived, unverified = derived_facts(*derived_arguments)
        return RunDetails(
            user=entity.info.user_id,
            status=status,
            history=history,
            files=tuple(files.paths()),
            model=model if model and self.linked_engines.get(model) else None,
            derived=derived,
            unverified=tuple(unverified),
        )

    def peek(self, run_id: str, path: str) -> bytes | None:
        return self._files(self._entity(run_id)).peek(path)

    def drop(self, run_id: str, paths: Collection[str]) -> None:
        files = self._files(self._entity(run_id))
        manifest = read_manifest(run_id, files.peek(Artifact.MANIFEST)).without(paths)
        manifest_bytes = manifest.to_json().encode("utf-8")
        for path in paths:
            self.log.append("deleted", run_id, {"path": path})
            files.remove(path)
        self.linked_engines.drop(run_id, paths, manifest_bytes)
        # Last: while the manifest lists the files, the next retention repeats an interrupted one.
        files.put(manifest_bytes, Artifact.MANIFEST)

    def register(
        self, name: str, run_id: str, path: str, *, alias: str, also: str = "", tags: Tags | None = None
    ) -> RegisteredVersion:
        aliases = [alias, *([also] if also else ())]
        for checked_alias in aliases:
            check_registration(name, checked_alias)
        stored = self.load(run_id)
        stored.local_path(path)
        if self._registered_model(name) is None:
            try:
                self._call(self._client.create_registered_model, name)
            except errors.TrackingError:
                # Another process may just have made it.
                if self._registered_model(name) is None:
                    raise
        platform = ", ".join(value for tag in (Tag.BACKEND, Tag.DEVICE) if (value := stored.info.fact(tag)))
        user = self._connection.user()
        tags = {**(tags or {}), **({Tag.ACCEPTED_BY: user["username"]} if user else {})}
        source, model_id = f"runs:/{run_id}/{path}", None
        model = self.linked_engines.get(self.linked_engines.model_of(run_id) or "")
        if model is not None and path.startswith(f"{Artifact.ENGINE}engine."):
            # MLflow's clients load it from there; "models:/<id>" would be searched at their default address.
            source, model_id, tags = model.artifact_location, model.model_id, {**tags, Tag.ENGINE_PATH: path}
        create = functools.partial(
            self._client.create_model_version,
            name,
            source,
            run_id,
            tags=tags,
            description=f"{stored.info.params.get('precision', '').upper()} engine for {platform}",
            await_creation_for=0,  # it is ready; waiting would print a line
            model_id=model_id,
        )
        attempted = False

        def make() -> str:
            # If the answer of an attempt is lost, the next one finds the version.
            nonlocal attempted
            interrupted = self.linked_engines.versions_loading(model)[1] if attempted and model is not None else {}
            attempted = True
            return next((number for made, number in interrupted if made == name), None) or str(create().version)

        number = self._call(make)
        if model_id is not None:
            self.linked_engines.add_version(model_id, name, number)
        registered = self._version(name, number)
        for new_alias in aliases:
            # A process may be killed between two of these calls, and an audit reads what it intended.
            facts = {"alias": new_alias, **registered.facts()}
            self.log.append("registering", run_id, facts)
            self._call(self._client.set_registered_model_alias, name, new_alias, number)
            self.log.append("registered", run_id, facts)
        return registered

    def check_access(self, registered_model: str | None = None) -> None:
        with contextlib.suppress(errors.TrackingUnavailableError):  # runs go to the spool then
            user = self._connection.user()
            if user is None or user["is_admin"]:
                return
            account = f"{self.shown}: the account {user['username']!r}"
            if registered_model is None:
                raise errors.AccessDeniedError(
                    f"{account} is not an administrator's, and may not see every alias and run that needs an engine. "
                    "Let an administrator do this."
                )
            if self._registered_model(registered_model) is None:
                return  # every account may make one
            permission = self._connection.permission(user["username"], "registered_model", registered_model)
            if permission not in (None, "EDIT", "MANAGE"):
                raise errors.AccessDeniedError(
                    f"{account} has the permission {permission} on the registered model {registered_model!r}, and "
                    "needs EDIT to register engines. An administrator can grant it; a gate that registers nothing does "
                    "not need it."
                )

    def registered(self, name: str, alias: str) -> RegisteredVersion | None:
        number = self.aliases(name).get(alias)
        return None if number is None else self._version(name, number)

    def aliases(self, name: str) -> dict[str, str]:
        model = self._registered_model(name)
        aliases = {} if model is None else model.aliases
        return {alias: str(version) for alias, version in aliases.items()}

    def accepted(self, tags: Tags | None = None) -> list[tuple[str, RegisteredVersion]]:
        every = self._pages(self._client.search_model_versions, _query(RunFilter(tags=tags or {})))
        versions = {(version.name, str(version.version)): version for version in every}
        models = self._pages(self._client.search_registered_models)
        if tags:  # a store may have thousands of models
            models = filter(None, map(self._registered_model, dict.fromkeys(name for name, _ in versions)))
        pairs = []
        for model in models:
            for alias, number in sorted(model.aliases.items()):
                if (model.name, str(number)) in versions:
                    pairs.append((alias, versions[model.name, str(number)]))
        alias_versions = []
        for alias, entity in pairs:
            with contextlib.suppress(errors.StoreError):
                version = _registered_version(entity)
                if (tags or {}).items() <= version.tags.items():
                    alias_versions.append((alias, version))
        return alias_versions

    def engines(self, query: EngineQuery, limit: int | None = None) -> list[tuple[RunInfo, float | None]]:
        ids = self._experiment_ids(query.experiment)
        versions = {(version.name, version.version) for _, version in self.accepted()} if query.accepted else None
        if not ids or versions == set():
            return []
        engine_values = dict(self.linked_engines.search(ids, query, versions, limit))
        infos: dict[str, RunInfo] = {}
        for start in range(0, len(engine_values), 500):
            query_runs = f"attributes.run_id IN ({', '.join(map(repr, [*engine_values][start : start + 500]))})"
            infos |= {e.info.run_id: self._info(e) for e in self._pages(self._client.search_runs, ids, query_runs)}
        return [(infos[run_id], value) for run_id, value in engine_values.items() if run_id in infos]

    def _registered_model(self, name: str) -> Any:
        try:
            return self._call(self._client.get_registered_model, name)
        # It is unknown, or no model can have such a name.
        except (errors.RunNotFoundError, errors.LogError):
            return None

    def _version(self, name: str, number: str) -> RegisteredVersion:
        return _registered_version(self._call(self._client.get_model_version, name, number))

    def _entity(self, run_id: str) -> MlflowRunEntity:
        missing = errors.RunNotFoundError(
            f"{self.shown} has no run with the id {run_id!r}. Expected 32 hexadecimal digits of a run in it."
        )
        if not (run_id.isascii() and run_id.isalnum()):
            raise missing
        if is_local(run_id):
            uploaded = self._with_local_id(self._all_experiments(), run_id)
            if uploaded is not None:
                run_id = uploaded.info.run_id  # a search returns less of a run
        try:
            return self._call(self._client.get_run, run_id)
        except errors.RunNotFoundError:
            raise missing from None

    def _with_local_id(self, experiment_ids: list[str], local_id: str) -> MlflowRunEntity | None:
        query = f"tags.`{Tag.LOCAL_ID}` = '{local_id}'"
        runs = self._call(self._client.search_runs, experiment_ids, query, max_results=1)
        return runs[0] if runs else None

    def _experiment_id(self, name: str) -> str:
        cached_id = self._experiments.get(name) or next(iter(self._known_experiment(name)), None)
        if cached_id is not None:
            return cached_id
        location = str(self.store.artifacts_of(name)) if self.store else None
        try:
            experiment_id = self._call(self._client.create_experiment, name, artifact_location=location)
            for tag, value in experiment_tags(experiment_id).items():
                self._call(self._client.set_experiment_tag, experiment_id, tag, value)
        except errors.TrackingError:
            # Another process may have made it in the meantime, which MLflow's clients cannot prevent.
            if not self._known_experiment(name):
                raise
        return self._known_experiment(name)[0]

    def _experiment_ids(self, name: str | None) -> list[str]:
        return self._all_experiments() if name is None else self._known_experiment(masked(name))

    def _known_experiment(self, name: str) -> list[str]:
        experiment = self._connection.experiment(name)
        if experiment is None:
            return []
        if experiment.lifecycle_stage != "active":
            raise errors.StoreError(
                f"Experiment {name!r} of {self.shown} was deleted. Restore it: mlflow experiments restore "
                f"--experiment-id {experiment.experiment_id}"
            )
        self._experiments[name] = experiment.experiment_id
        return [experiment.experiment_id]

    def _all_experiments(self, *, deleted: bool = False) -> list[str]:
        every = self._pages(self._client.search_experiments, view_type=_ALL if deleted else _ACTIVE)
        listed = [experiment for experiment in every if experiment.name != EXPERIMENT]
        self._experiments.update({experiment.name: experiment.experiment_id for experiment in listed})
        return [experiment.experiment_id for experiment in listed]

    def _experiment_name(self, experiment_id: str) -> str:
        for name, cached_id in list(self._experiments.items()):
            if cached_id == experiment_id:
                return name
        name = str(self._call(self._client.get_experiment, experiment_id).name)
        self._experiments[name] = experiment_id
        return name

    def _pages(self, search: Callable[..., Any], *args: Any, size: int = _PAGE, **options: Any) -> Iterator[Any]:
        token = None
        while True:
            page = self._call(search, *args, **options, max_results=size, page_token=token)
            yield from page
            # A broken server may repeat a page for ever.
            if page.token and page.token == token:
                raise errors.StoreError(f"{self.shown} sends the same page again and again. Do not trust this store.")
            token = page.token
            if not token:
                return

    def _info(self, entity: MlflowRunEntity) -> RunInfo:
        info, stored = entity.info, entity.data.tags
        check_id(info.run_id, self.shown)
        try:
            return RunInfo(
                id=info.run_id,
                experiment=self._experiment_name(info.experiment_id),
                name=info.run_name or "",
                parent=stored.get(_PARENT),
                status=_read_status(info.status, stored),
                start_time=info.start_time / 1000,
                end_time=None if info.end_time is None or info.status == "RUNNING" else info.end_time / 1000,
                tags=dict(stored),
                params=dict(entity.data.params),
                metrics={_read_metric(k): schema.read_number(v) for k, v in entity.data.metrics.items()},
                url=self._connection.url(info.experiment_id, info.run_id),
                deleted=info.lifecycle_stage == "deleted",
            )
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as exc:
            raise errors.IncompleteRunError(
                f"Run {info.run_id} of {self.shown} cannot be read ({type(exc).__name__}: {masked(str(exc)):.200}). "
                "It was damaged, or another program than MLflow wrote it. Use another run, or restore a backup."
            ) from exc

    def _files(self, entity: MlflowRunEntity) -> Files:
        return files_of(self._connection, entity.info.run_id, entity.info.artifact_uri)


class MlflowRun(Run):
    """A run in MLflow, being written."""

    def __init__(self, tracker: MlflowTracker, entity: MlflowRunEntity, files: Files) -> None:
        self._tracker, self._connection, self._files = tracker, tracker._connection, files
        self._row = tracker._info(entity)  # with the name, tags and params that this process sets
        super().__init__(entity.info.run_id, self._row.url)
        self._started = int(entity.info.start_time)
        self._metrics = {key: schema.read_number(value) for key, value in entity.data.metrics.items()}
        self._timestamps: dict[str, int] = {}
        self._linked: dict[str, dict[str, list[float]]] = {}  # metrics of other runs' engines, by logged model

    def _sync(self, paths: Iterable[str]) -> None:
        try:
            self._files.sync(paths)
        except OSError as exc:
            raise errors.LogError(f"The artifacts of run {self.id} could not be written to the disk: {exc}.") from exc

    def _info(self) -> RunInfo:
        return self._tracker.info(self.id)

    def _log_head(self) -> str:
        return self._tracker.log.head()

    def _linked_metrics(self) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
        linked: dict[str, dict[str, tuple[float, ...]]] = {}
        for model, numbers in self._linked.items():
            linked[model] = {key: tuple(values) for key, values in numbers.items()}
        return linked

    def _put(self, values: Values) -> None:
        if values.name:
            self._connection.call(self._connection.client.update_run, self.id, name=values.name)
            self._row = replace(self._row, name=values.name)
        changed: dict[str, float] = {}
        for name, value in values.metrics.items():
            key = schema.metric_key(name)
            before = self._metrics.get(key)
            if values.engine or before is None or not (before == value or (math.isnan(before) and math.isnan(value))):
                changed[key] = value
                self._timestamps[key] = self._next_timestamp(key)
        metrics = {key: (schema.stored_number(value), self._timestamps[key]) for key, value in changed.items()}
        of = self._tracker.linked_engines.link(values.engine, self._row.params) if values.engine else {}
        # MLflow stores NaN as 0 in logged models.
        linked = {key: number for key, number in metrics.items() if of and not math.isnan(number[0])}
        metrics = {key: number for key, number in metrics.items() if key not in linked}
        if values.params or values.tags or metrics:
            self._connection.log_batch(self.id, metrics=metrics, params=values.params, tags=values.tags)
        if linked:
            try:
                self._connection.log_batch(self.id, metrics=linked, of=of)
            except errors.AccessDeniedError as exc:  # the engine is of an experiment that this account may only read
                log.debug("Numbers of run %s are not linked to its engine: %s", self.id, exc)
                self._connection.log_batch(self.id, metrics=linked)
            else:
                numbers = self._linked.setdefault(of["model_id"], {})
                for key, (value, _) in linked.items():
                    numbers.setdefault(key, []).append(value)
        self._metrics |= changed
        tags, params = {**self._row.tags, **values.tags}, {**self._row.params, **values.params}
        self._row = replace(self._row, tags=tags, params=params)

    def _next_timestamp(self, key: str) -> int:
        # Of two values with the same timestamp MLflow shows the larger, not the newer.
        if key in self._timestamps:
            return self._timestamps[key] + 1
        if key not in self._metrics:
            return self._started
        # An earlier process logged it, and this run was reopened.
        history = self._connection.call(self._connection.client.get_metric_history, self.id, key)
        return max(int(metric.timestamp) for metric in history) + 1

    def _put_artifact(self, source: Path | bytes, path: str) -> ArtifactEntry:
        return self._files.put(source, path)

    def _end(self, status: RunStatus, at: float | None = None) -> None:
        self._tracker.end(replace(self._row, status=status), self._files, at)


def _registered_version(version: Any) -> RegisteredVersion:
    """A version from MLflow's. StoreError if it does not point to an artifact of a run."""
    name, number, tags = version.name, str(version.version), dict(version.tags)
    # MLflow accepts any path as a source. Only an artifact of a run has a manifest to be checked against.
    match = re.fullmatch(r"runs:/(\w+)/(.+)", source := str(version.source))
    run_id, path = (match[1], match[2]) if match else (version.run_id or "", tags.get(Tag.ENGINE_PATH, ""))
    is_model = re.search(r"/models/m-[0-9a-f]{32}/artifacts$", source) and run_id.isalnum() and path
    if not (match or is_model) or ".." in path.split("/"):
        raise errors.StoreError(
            f"Version {number} of {name!r} points to {source!r}, which is not an artifact of a run, so its content "
            "cannot be checked. Promote a run instead."
        )
    return RegisteredVersion(
        name=name, version=number, run_id=run_id, path=path, tags=tags, source=source,
        description=version.description or "",
    )  # fmt: skip


def _shown_status(status: RunStatus, verdict: str | None) -> str:
    # A finished run whose verdict is not good must not have a green check in MLflow's tables.
    return "FAILED" if status == "finished" and verdict not in (None, "good") else status.upper()


def _read_status(shown: str, tags: Mapping[str, str]) -> RunStatus:
    """The inverse of :func:`_shown_status`."""
    # Only a finished run has a manifest.
    if shown == "FAILED" and tags.get(Tag.MANIFEST_SHA256):
        return "finished"
    return _STATUS[shown]


_STATUS: dict[str, RunStatus] = {
    "RUNNING": "running",
    "SCHEDULED": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "killed",
}


def _query(run_filter: RunFilter) -> str:
    """A query for at least the runs of a filter: MLflow's language cannot quote every key and value."""
    required_tags = dict(run_filter.tags)
    if run_filter.parent is not None:
        required_tags[_PARENT] = run_filter.parent
    conditions = [
        f"tags.`{key}` = '{value}'"
        for key, value in required_tags.items()
        if value and value.isprintable() and not set("'\"`\\") & {*key, *value}
    ]
    if run_filter.status == "finished":  # runs that are not good are shown as failed (_shown_status)
        conditions += ["attributes.status != 'RUNNING'", "attributes.status != 'KILLED'"]
    elif run_filter.status is not None:
        conditions.append(f"attributes.status = '{run_filter.status.upper()}'")
    if run_filter.id_prefix:
        conditions.append(f"attributes.run_id LIKE '{run_filter.id_prefix}%'")
    return " and ".join(conditions)


def _read_metric(key: str) -> tuple[str, ...]:
    try:
        return schema.metric_name(key)
    except errors.FormatError:
        # Another program logged it.
        return tuple(key.split("/"))
