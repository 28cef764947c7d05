"""Engines as MLflow's logged models: the files, params and kernels of each, and all metrics measured on it.

A complete run that built an engine has one logged model, made when the run ends. Later runs link their numbers to it,
with name and digest of their data, and a run that reuses the engine has it as an input. All of this repeats what runs
state, for MLflow's pages, clients and searches; :meth:`Engines.derived` compares the two for audits.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.tracking import schema
from trtops.tracking.mlflow.artifacts import files_of
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.mlflow.logged_models import (
    CONTEXT,
    MAX_COPIED_BYTES,
    VERSIONS,
    EngineModel,
    data_of,
    dataset_name,
    dataset_source,
    datasets_of,
    engine_model,
    kernel_tag,
    model_entries,
    output_of,
    versions_of,
)
from trtops.tracking.reading import read_manifest
from trtops.tracking.records import EngineQuery
from trtops.tracking.schema import Artifact, Tag

if TYPE_CHECKING:
    from trtops.tracking.mlflow.artifacts import Files

log = logging.getLogger(__name__)


class Engines:
    """The logged models of a store."""

    def __init__(self, connection: Connection, pages: Callable[..., Iterator[Any]]) -> None:
        self._connection, self._pages = connection, pages
        self._call = connection.call

    def record(self, run_id: str, files: Files) -> str | None:
        """Record the engine and the data of a run that ends, and return the id of the engine's logged model.

        The run's own engine becomes a logged model with its files; a reused one becomes an input of the run, as its
        data does. Problems of MLflow lead to a warning. Raises TrackingUnavailableError or NoRoomError if the store
        cannot be written now.
        """
        try:
            run = self._call(self._connection.client.get_run, run_id)
            model = self._record_inputs(run)
            if Tag.ENGINE_SHA256 not in run.data.tags or Tag.REUSED_FROM in run.data.tags:
                return model
            stated = engine_model(run, files)
            model = output_of(run) or self._create(run, stated)
            model_files = self.files_of(self._call(self._connection.client.get_logged_model, model))
            self._copy_files(run_id, files, model_files)
            start = int(run.info.start_time)
            numbers = {key: (value, start) for key, value in stated.metrics.items()}
            self._connection.log_batch(run_id, metrics=numbers, of={"model_id": model, **data_of(run.data.params)})
            self._call(self._connection.client.finalize_logged_model, model, stated.status)
            return model
        except (errors.TrackingUnavailableError, errors.NoRoomError):
            raise
        except (errors.TrackingError, ValueError, TypeError, AttributeError) as exc:  # the layers may be damaged
            log.warning("The engine of run %s is not among MLflow's logged models: %s", run_id, exc)
            return None

    def _record_inputs(self, run: Any) -> str | None:
        """Make a run's data and its reused engine inputs of the run; returns the id of the engine's logged model."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput

        datasets = []
        for (name, digest), context in datasets_of(run).items():
            dataset = Dataset(name, digest, "local", dataset_source(name))
            datasets.append(DatasetInput(dataset, [InputTag(CONTEXT, context)]))
        model, models = None, list[LoggedModelInput]()
        if Tag.REUSED_FROM in run.data.tags:
            model = self.model_of(run.info.run_id)
            models = [] if model is None else [LoggedModelInput(model)]
        if datasets or models:
            try:
                self._call(self._connection.client.log_inputs, run.info.run_id, datasets, models)
            except errors.AccessDeniedError:  # the engine is of an experiment that this account may only read
                self._call(self._connection.client.log_inputs, run.info.run_id, datasets)
                return None
        return model

    def _create(self, run: Any, stated: EngineModel) -> str:
        from mlflow.entities import LoggedModelOutput

        client, run_id = self._connection.client, run.info.run_id
        logged_model = self._call(
            client.create_logged_model,
            run.info.experiment_id, stated.name, run_id, dict(stated.tags), dict(stated.params), "engine",
        )  # fmt: skip
        self._call(client.log_outputs, run_id, [LoggedModelOutput(logged_model.model_id, 0)])
        return str(logged_model.model_id)

    def _copy_files(self, run_id: str, files: Files, model_files: Files) -> None:
        """Give a logged model the files of its engine: as links in an embedded store, else as copies of small ones."""
        for entry in model_entries(read_manifest(run_id, files.peek(Artifact.MANIFEST))):
            if self._connection.store is None and entry.size > MAX_COPIED_BYTES:
                continue
            if (file := files.get(entry)) is not None:
                model_files.adopt(file, entry.path)
        for path in (Artifact.MANIFEST, Artifact.SIGNATURE):
            if (content := files.peek(path)) is not None:
                model_files.put(content, path)

    def files_of(self, model: Any) -> Files:
        """The files of one of MLflow's logged models."""
        return files_of(self._connection, model.model_id.removeprefix("m-"), model.artifact_location)

    def drop(self, run_id: str, paths: Collection[str], manifest: bytes) -> None:
        """Delete files of a run's own engine from its logged model, and replace the manifest there."""
        if (model := output_of(self._call(self._connection.client.get_run, run_id))) is None:
            return
        model_files = self.files_of(self._call(self._connection.client.get_logged_model, model))
        model_files.put(manifest, Artifact.MANIFEST)
        for path in paths:
            if path.startswith(schema.LOGGED_MODEL_FILES):
                model_files.remove(path)

    def model_of(self, run_id: str) -> str | None:
        """The id of the logged model of a run's engine, its own or a reused one; None without one."""
        run = None
        with contextlib.suppress(errors.RunNotFoundError):
            run = self._call(self._connection.client.get_run, run_id)
            if (source := run.data.tags.get(Tag.REUSED_FROM)) is not None:
                run = self._call(self._connection.client.get_run, source)
        return None if run is None else output_of(run)

    def get(self, model: str) -> Any:
        """MLflow's logged model with an id; None if it was deleted, or the id is empty."""
        if model:
            with contextlib.suppress(errors.RunNotFoundError):
                return self._call(self._connection.client.get_logged_model, model)
        return None

    def link(self, engine: str, params: Mapping[str, str]) -> Mapping[str, str]:
        """What connects metrics with a run's engine, for ``Connection.log_batch``; ``params`` name their data."""
        model = self.get(self.model_of(engine) or "")
        return {} if model is None else {"model_id": model.model_id, **data_of(params)}

    def versions_loading(self, model: Any) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        """Name and number of the registered versions that load a logged model, and of interrupted registrations.

        Those have no alias, and the logged model does not list them.
        """
        client, listed = self._connection.client, versions_of(model)
        loading = self._pages(client.search_model_versions, f"source_path = '{model.artifact_location}'")
        versions, interrupted = {(version.name, str(version.version)) for version in loading}, set[tuple[str, str]]()
        for version in versions - listed:
            if not self._call(client.get_model_version, *version).aliases:  # searches leave them out
                interrupted.add(version)
        return versions - interrupted, interrupted

    def add_version(self, model: str, name: str, version: str) -> None:
        """Link a registered version to a logged model."""
        client = self._connection.client
        versions = {*versions_of(self._call(client.get_logged_model, model)), (name, version)}
        listed = [{"name": name, "version": version} for name, version in sorted(versions)]
        self._call(client.set_logged_model_tags, model, {VERSIONS: json.dumps(listed)})

    def search(
        self,
        experiments: list[str],
        query: EngineQuery,
        versions: Collection[tuple[str, str]] | None,
        limit: int | None,
    ) -> list[tuple[str, float | None]]:
        """Runs with matching engines, and the value of ``query.best`` as their sort key.

        With ``versions``, as name and version, only engines that are registered as one of them.
        """
        conditions = [] if query.verdict is None else [f"tags.`{Tag.VERDICT}` = {_quoted(query.verdict)}"]
        if query.best:
            conditions.append(f"tags.`{Tag.KIND}` != 'iteration'")
        if query.without_models:
            conditions.append(f"tags.`{Tag.MODEL_SHA256}` NOT IN ({', '.join(map(_quoted, query.without_models))})")
        if versions is not None:
            conditions.append(f"tags.`{VERSIONS}` != ''")
        if query.kernel:
            conditions.append(f"tags.`{kernel_tag(query.kernel)}` != ''")
        if query.device:
            conditions.append(f"params.`env.device` = {_quoted(query.device)}")
        for metric, value in query.above:
            conditions.append(f"metrics.`{metric}` > {value!r}")
        name, _, digest = query.data.rpartition("@") if "@" in query.data else (query.data, "", "")
        name = dataset_name(name)
        data = {"dataset_name": name} if name else {}
        data |= {"dataset_digest": digest} if digest else {}
        order = [{"field_name": f"metrics.{query.best}", "ascending": True, **data}] if query.best else None
        # MLflow's server takes a missing digest for an empty one. The best come first anyway.
        datasets = [data] if not order and (digest or (name and self._connection.store)) else None
        matches: list[tuple[str, float | None]] = []
        for model in self._pages(
            self._connection.client.search_logged_models, experiments, filter_string=" and ".join(conditions),
            datasets=datasets, order_by=order, size=min(max(limit or 100, 20), 100),
        ):  # fmt: skip
            numbers = [
                m for m in model.metrics or () if name in ("", m.dataset_name) and digest in ("", m.dataset_digest)
            ]
            best = max(
                (m for m in numbers if m.key == query.best), key=lambda candidate: candidate.timestamp, default=None
            )
            if query.best and best is None:  # engines without a value are last
                break
            if (
                (numbers or not name)
                and all(any(m.key == key and m.value > above for m in numbers) for key, above in query.above)
                and (versions is None or not versions_of(model).isdisjoint(versions))
            ):
                matches.append((str(model.source_run_id), best and best.value))
            if len(matches) == limit:
                break
        return matches


def _quoted(text: str) -> str:
    """A quoted text for MLflow's search language, without a way to escape quotes."""
    if set("'\"`\\") & set(text):
        raise errors.ConfigError(f"{text!r} contains a quote, which MLflow cannot search for.")
    return f"'{text}'"
