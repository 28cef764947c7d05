"""The tracker over an embedded store or a server: what runs and experiments are in MLflow's terms."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtops import errors
from trtops.masking import masked, masked_values
from trtops.tracking import owner, schema
from trtops.tracking.base import Manifest, MetricName, RunInfo, RunStatus, StoredRun
from trtops.tracking.heartbeat import keep_beating, stop_beating
from trtops.tracking.ids import is_local, whole_id
from trtops.tracking.location import Store
from trtops.tracking.mlflow.artifacts import Files, check_id, files_of
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.mlflow.installed import library
from trtops.tracking.mlflow.rows import RunRow, run_rows, served_run_rows
from trtops.tracking.mlflow.run import MlflowRun, MlflowStoredRun, read_status, shown_status, stored_tags
from trtops.tracking.mlflow.views import experiment_tags
from trtops.tracking.registry import ACCEPTED, RegisteredVersion, artifact_of, check_registration, source_of
from trtops.tracking.schema import Artifact, Kind, Tag
from trtops.tracking.writer import (
    check_reopening,
    checked_names,
    failure_note,
    read_manifest,
    starting_tags,
    without_dropped,
)

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRunEntity

log = logging.getLogger(__name__)

T = TypeVar("T")

_PAGE = 1000
_PARENT = "mlflow.parentRunId"


class MlflowTracker:
    """A :class:`trtops.tracking.base.Tracker` over an embedded store or a server.

    Safe to use from any thread, and from children made by ``fork``. Pickles as its location.

    Args:
        location: A folder, ``sqlite:///<file>``, or a server's ``http(s)://`` address; None for the default
            (:func:`trtops.tracking.location.default_location`). An embedded store is made if it is missing.

    Raises:
        StoreError: If the store cannot be used as it is.
    """

    def __init__(self, location: str | Path | Store | None = None) -> None:
        self._connection = Connection(location)
        self._client = self._connection.client
        self._call = self._connection.call
        self.store = self._connection.store
        self.lock_folder = self.store.locks if self.store else None
        self.shown = self._connection.shown
        self.context: Mapping[str, str] = masked_values(library().tracking.context.registry.resolve_tags())
        self._experiments: dict[str, str] = {}
        self._arranged: set[str] = set()

    def __repr__(self) -> str:
        return f"MlflowTracker({self.shown!r})"

    def __reduce__(self) -> tuple[type[MlflowTracker], tuple[str]]:
        return type(self), (self._connection.location,)

    def start(
        self,
        experiment: str,
        name: str,
        *,
        kind: Kind,
        tags: Mapping[str, str] | None = None,
        parent: str | None = None,
    ) -> MlflowRun:
        """Begin a run."""
        experiment, name = checked_names(experiment, name)
        return self.create(experiment, name, tags={**self.context, **starting_tags(kind, tags)}, parent=parent)

    def create(
        self,
        experiment: str,
        name: str,
        *,
        tags: Mapping[str, str],
        parent: str | None = None,
        began: float | None = None,
        known: bool = False,
    ) -> MlflowRun:
        """Make a run with exactly these tags."""
        self._connection.require_writable()
        stored = stored_tags(tags) | ({} if parent is None else {_PARENT: parent})
        experiment_id, start = self._experiment_id(experiment), None if began is None else round(1000 * began)
        self._arrange(experiment_id)
        looked_for = known

        def make() -> MlflowRunEntity:
            # After an attempt whose answer was lost the run may be there.
            nonlocal looked_for
            if looked_for and (earlier := self._with_local_id([experiment_id], tags[Tag.LOCAL_ID])) is not None:
                return earlier
            looked_for = True
            return self._client.create_run(experiment_id, start_time=start, tags=stored, run_name=name)

        entity = self._call(make)
        try:
            run = MlflowRun(self._connection, entity, self._files(entity))
        except errors.StoreError:  # its artifacts would be on the disk of a server
            self._connection.end(entity.info.run_id, "FAILED")
            raise
        if not known:  # else it is not this process's
            keep_beating(run)
        return run

    def whole_id(self, run: str) -> str:
        """The id of a run as people give it."""
        return whole_id(run, self._beginning_with, self.shown)

    def info(self, run_id: str) -> RunInfo:
        """What is known of a run, complete or not."""
        return self._info(self._entity(run_id))

    def load(self, run_id: str) -> StoredRun:
        """A whole run."""
        entity = self._entity(run_id)
        files = self._files(entity)
        manifest = read_manifest(run_id, files.manifest())
        return MlflowStoredRun(self._info(entity), manifest, files)

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
        ids = self._all_experiments() if experiment is None else self._known_experiment(masked(experiment))
        if parent is not None and is_local(parent) and (known := self._called(parent)) is not None:
            parent = known.info.run_id
        wanted = (tags or {}).items()
        found: list[RunInfo] = []
        for info in self._search(ids, _search_filter(tags or {}, parent, status), limit) if ids and limit != 0 else ():
            # The query may find more than what is wanted (_search_filter).
            if wanted <= info.tags.items() and parent in (None, info.parent) and status in (None, info.status):
                found.append(info)
                if len(found) == limit:
                    break
        return found

    def run_rows(self, artifacts: Path | None = None) -> list[RunRow]:
        """All runs, of other programs and deleted ones too, with the folders of their files on this machine.

        Args:
            artifacts: Of a server: the folder that it keeps artifacts in.

        Raises:
            TrackingError: If the store cannot be read.
        """
        if self.store is not None:
            return run_rows(self.store)
        assert artifacts is not None
        return served_run_rows(self._connection, artifacts)

    def close(self, run_id: str, why: str) -> RunInfo:
        """End a run whose own process can no longer do it."""
        self._connection.require_writable()
        entity = self._entity(run_id)
        run_id = entity.info.run_id
        stop_beating(run_id)
        if read_status(entity.info.status, entity.data.tags) == "running":
            files = self._files(entity)
            whole = files.manifest() is not None
            if not whole:
                note = failure_note(run_id, why)
                self._connection.log_batch(run_id, tags=stored_tags({Tag.ERROR: why, Tag.NOTE: note}))
            verdict = entity.data.tags.get(Tag.VERDICT)
            self._connection.end(run_id, shown_status("finished", verdict) if whole else "KILLED")
            files.sweep()
        return self.info(run_id)

    def reopen(self, run_id: str) -> MlflowRun:
        """Resume a run that was interrupted."""
        self._connection.require_writable()
        entity = self._entity(run_id)
        files, info = self._files(entity), self._info(entity)
        check_reopening(info, whole=files.manifest() is not None)
        stop_beating(info.id)
        self._connection.log_batch(info.id, tags=stored_tags(owner.tags_of_owner()))
        run = self._rewrite(entity)
        run.take_over(files.entries(), info.metrics)
        keep_beating(run)
        return run

    def rewrite(self, run_id: str) -> MlflowRun:
        """Write to a run whatever its state."""
        self._connection.require_writable()
        return self._rewrite(self._entity(run_id))

    def _rewrite(self, entity: MlflowRunEntity) -> MlflowRun:
        run_id, files = entity.info.run_id, self._files(entity)
        for tag in {Tag.ERROR, Tag.VERDICT, Tag.MANIFEST_SHA256} & entity.data.tags.keys():
            self._call(self._client.delete_tag, run_id, tag)
        self._call(self._client.update_run, run_id, status="RUNNING")
        files.sweep()
        return MlflowRun(self._connection, entity, files)

    def drop(self, run_id: str, paths: Collection[str], why: str) -> Manifest:
        """Remove artifacts of a whole run, and say so in its manifest."""
        files = self._files(self._entity(run_id))
        manifest = without_dropped(read_manifest(run_id, files.manifest()), paths, why)
        files.put(manifest.to_json().encode("utf-8"), Artifact.MANIFEST)
        for each in manifest.dropped:
            files.remove(each.artifact.path)
        return manifest

    def peek(self, run_id: str, path: str) -> bytes | None:
        """An artifact of a run that need not be whole."""
        return self._files(self._entity(run_id)).peek(path)

    def register(
        self, name: str, run_id: str, path: str, *, alias: str, tags: Mapping[str, str] | None = None
    ) -> RegisteredVersion:
        """Add a version and let an alias point to it."""
        self._connection.require_writable()
        check_registration(self, name, run_id, path, alias)
        if self._registered_model(name) is None:
            try:
                self._call(self._client.create_registered_model, name)
            except errors.TrackingError:
                if self._registered_model(name) is None:  # otherwise another process has just made it
                    raise
        kept = {**(tags or {}), Tag.REGISTERED_PATH: path}
        version = self._call(
            self._client.create_model_version,
            name,
            source_of(run_id, path),
            run_id,
            tags=stored_tags(kept),
            description=_version_text(self.info(run_id)),
        )
        for each in (alias, ACCEPTED):
            self._call(self._client.set_registered_model_alias, name, each, version.version)
        return self._version(name, str(version.version))

    def registered(self, name: str, alias: str) -> RegisteredVersion | None:
        """The version that an alias points to."""
        number = self.aliases(name).get(alias)
        return None if number is None else self._version(name, number)

    def aliases(self, name: str) -> dict[str, str]:
        """A registered model's aliases, as names to version numbers."""
        model = self._registered_model(name)
        aliases = {} if model is None else model.aliases
        return {alias: str(version) for alias, version in aliases.items() if alias != ACCEPTED}

    def accepted(self) -> list[tuple[str, RegisteredVersion]]:
        """Every alias of every registered model with the version that it points to."""
        found, token = [], None
        while True:
            page = self._call(self._client.search_registered_models, max_results=_PAGE, page_token=token)
            for model in page:
                for alias, number in sorted(self.aliases(model.name).items()):
                    with contextlib.suppress(errors.StoreError, errors.RunNotFoundError):
                        found.append((alias, self._version(model.name, number)))
            token = page.token
            if not token:
                return found

    def _registered_model(self, name: str) -> Any:
        try:
            return self._call(self._client.get_registered_model, name)
        except (errors.RunNotFoundError, errors.LogError):  # unknown, or a name that no model can have
            return None

    def _version(self, name: str, number: str) -> RegisteredVersion:
        version = self._call(self._client.get_model_version, name, number)
        long = schema.long_texts(version.tags)
        tags = {
            _decoded_name(k, long): schema.whole_value(v, long)
            for k, v in version.tags.items()
            if not schema.is_internal(k)
        }
        run_id, path = artifact_of(name, number, str(version.source), tags.pop(Tag.REGISTERED_PATH, None))
        return RegisteredVersion(name=name, version=number, run_id=run_id, path=path, tags=tags)

    def _entity(self, run_id: str) -> MlflowRunEntity:
        if not (run_id.isascii() and run_id.isalnum()):
            raise _no_run(run_id, self.shown)
        if is_local(run_id) and (known := self._called(run_id)) is not None:
            return known
        try:
            return self._call(self._client.get_run, run_id)
        except errors.RunNotFoundError:
            raise _no_run(run_id, self.shown) from None

    def _called(self, local_id: str) -> MlflowRunEntity | None:
        """The run to which its own process gave an id."""
        return self._call(self._with_local_id, self._all_experiments(), local_id)

    def _with_local_id(self, experiment_ids: list[str], local_id: str) -> MlflowRunEntity | None:
        found = self._client.search_runs(experiment_ids, f"tags.`{Tag.LOCAL_ID}` = '{local_id}'", max_results=1)
        return found[0] if found else None

    def _experiment_id(self, name: str) -> str:
        known = self._experiments.get(name) or next(iter(self._known_experiment(name)), None)
        if known is not None:
            return known
        place = str(self.store.artifacts_of(name)) if self.store else None
        try:
            self._call(self._client.create_experiment, name, artifact_location=place)
        except errors.TrackingError:
            # Another process may have made it in the meantime, which MLflow's clients cannot prevent.
            if not self._known_experiment(name):
                raise
        return self._known_experiment(name)[0]

    def _arrange(self, experiment_id: str) -> None:
        """Give an experiment its saved view and its description, unless it has them."""
        if experiment_id in self._arranged:
            return
        with contextlib.suppress(errors.TrackingError):  # a run needs neither
            there = self._call(self._client.get_experiment, experiment_id).tags
            for tag, value in experiment_tags(experiment_id).items():
                if tag not in there:
                    self._call(self._client.set_experiment_tag, experiment_id, tag, value)
            self._arranged.add(experiment_id)

    def _known_experiment(self, name: str) -> list[str]:
        experiment = self._call(self._client.get_experiment_by_name, name)
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
            page = self._call(self._client.search_experiments, max_results=_PAGE, page_token=token)
            self._experiments.update({experiment.name: experiment.experiment_id for experiment in page})
            ids += [experiment.experiment_id for experiment in page]
            token = self._next_page(page.token, token)
            if not token:
                return ids

    def _experiment_name(self, experiment_id: str) -> str:
        for name, known in list(self._experiments.items()):
            if known == experiment_id:
                return name
        name = str(self._call(self._client.get_experiment, experiment_id).name)
        self._experiments[name] = experiment_id
        return name

    def _search(self, experiment_ids: list[str], query: str, limit: int | None) -> Iterator[RunInfo]:
        # MLflow takes a millisecond for each run that it returns, so pages are no larger than needed.
        size = _PAGE if limit is None else min(_PAGE, max(limit, 20))
        token = None
        while True:
            page = self._call(
                self._client.search_runs,
                experiment_ids,
                query,
                max_results=size,
                order_by=["attributes.start_time DESC"],
                page_token=token,
            )
            for entity in page:
                try:
                    yield self._info(entity)
                except errors.IncompleteRunError as exc:
                    log.warning("Passed over: %s", exc)
            token = self._next_page(page.token, token)
            if not token:
                return

    def _next_page(self, token: str | None, before: str | None) -> str | None:
        """The token of the next page; a store that gives the same again would never come to an end."""
        if token and token == before:
            raise errors.StoreError(f"{self.shown} sends the same page again and again. Do not trust this store.")
        return token

    def _beginning_with(self, digits: str, limit: int) -> list[RunInfo]:
        experiments = self._all_experiments()
        for column in ("attributes.run_id", f"tags.`{Tag.LOCAL_ID}`"):
            found = self._search(experiments, f"{column} LIKE '{digits}%'", limit) if experiments else ()
            if runs := list(itertools.islice(found, limit)):
                return runs
        return []

    def _info(self, entity: MlflowRunEntity) -> RunInfo:
        """What is known of a run.

        Raises:
            StoreError: If its id is none.
            IncompleteRunError: If it cannot be read: SQLite keeps anything in any column.
        """
        check_id(entity.info.run_id, self.shown)
        try:
            return self._read_info(entity)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as exc:
            raise errors.IncompleteRunError(
                f"Run {entity.info.run_id} of {self.shown} cannot be read ({type(exc).__name__}: {masked(str(exc)):.200}). It "
                "was damaged, or something else than MLflow wrote it. Use another run, or restore the store from a backup."
            ) from exc

    def _read_info(self, entity: MlflowRunEntity) -> RunInfo:
        info, stored = entity.info, entity.data.tags
        long = schema.long_texts(stored)
        end_time = info.end_time
        return RunInfo(
            id=info.run_id,
            experiment=self._experiment_name(info.experiment_id),
            name=info.run_name or "",
            parent=stored.get(_PARENT),
            status=read_status(info.status, stored),
            start_time=info.start_time / 1000,
            end_time=None if end_time is None or info.status == "RUNNING" else end_time / 1000,
            tags={
                _decoded_name(k, long): schema.whole_value(v, long)
                for k, v in stored.items()
                if not schema.is_internal(k)
            },
            params={_decoded_name(k, long): schema.whole_value(v, long) for k, v in entity.data.params.items()},
            metrics={
                _decoded_metric(k, long): schema.read_number(k, v, stored) for k, v in entity.data.metrics.items()
            },
            url=self._connection.url(info.experiment_id, info.run_id),
        )

    def _files(self, entity: MlflowRunEntity) -> Files:
        return files_of(self._connection, entity.info.run_id, entity.info.artifact_uri)


def _search_filter(tags: Mapping[str, str], parent: str | None, status: RunStatus | None) -> str:
    """A query that finds at least the runs that are wanted: MLflow's language can quote neither every key nor every value."""
    wanted = {schema.key(name): value for name, value in tags.items()}
    if parent is not None:
        wanted[_PARENT] = parent
    conditions = [
        f"tags.`{key}` = '{value}'"
        for key, value in wanted.items()
        if value and len(value) < schema.MAX_TAG and value.isprintable() and not set("'\"`\\") & set(value)
    ]
    if status == "finished":  # MLflow shows bad ones as failed (mlflow.run.shown_status)
        conditions += ["attributes.status != 'RUNNING'", "attributes.status != 'KILLED'"]
    elif status is not None:
        conditions.append(f"attributes.status = '{status.upper()}'")
    return " and ".join(conditions)


def _version_text(info: RunInfo) -> str:
    """What a registered version is, for the registry's page."""
    precision = info.params.get("precision", "").upper()
    where = ", ".join(value for tag in (Tag.BACKEND, Tag.DEVICE) if (value := info.tags.get(tag)))
    size = info.metrics.get(schema.Metric.ENGINE_BYTES)
    bytes_ = "" if size is None else f", {size / 2**20:.1f} MiB"
    return f'{precision} engine for {where}{bytes_}. Run it: `mlflow.pyfunc.load_model("models:/<name>@{ACCEPTED}")`.'


def _decoded_name(key: str, long: Mapping[str, str]) -> str:
    try:
        return schema.name(key, long)
    except errors.FormatError:
        return key  # logged by somebody else


def _decoded_metric(key: str, long: Mapping[str, str]) -> MetricName:
    try:
        return schema.metric_name(key, long)
    except errors.FormatError:
        return tuple(key.split("/"))  # logged by somebody else


def _no_run(run_id: str, location: str) -> errors.RunNotFoundError:
    return errors.RunNotFoundError(
        f"{location} has no run with the id {run_id!r}. Expected 32 hexadecimal digits of a run in it."
    )
