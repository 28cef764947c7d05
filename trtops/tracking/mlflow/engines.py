"""Engines as MLflow's logged models: the params and kernels of each, and all metrics measured on it.

A complete run that built an engine has one logged model, made when the run ends. Later runs link their numbers to it,
with name and digest of their data. The models are an index for searches: what a run states is in its own artifacts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.tracking import schema
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.records import EngineQuery
from trtops.tracking.schema import Artifact, Tag
from trtops.verdict import MARKS

if TYPE_CHECKING:
    from trtops.tracking.mlflow.artifacts import Files

VERSIONS = "mlflow.modelVersions"  # the tag by which MLflow's pages show where a logged model is registered

log = logging.getLogger(__name__)


class Engines:
    """The logged models of a store."""

    def __init__(self, connection: Connection, pages: Callable[..., Iterator[Any]]) -> None:
        self._connection, self._pages = connection, pages
        self._call = connection.call

    def record(self, run_id: str, files: Files) -> None:
        """Make the logged model of a run's own engine, if it has one, and link the run's numbers to it.

        Problems of MLflow lead to a warning. Raises TrackingUnavailableError or NoRoomError if the store cannot be
        written now.
        """
        try:
            run = self._call(self._connection.client.get_run, run_id)
            tags = run.data.tags
            if Tag.ENGINE_SHA256 not in tags or Tag.REUSED_FROM in tags:
                return
            model = _model_of(run) or self._create(run, files)
            start = int(run.info.start_time)
            # MLflow stores NaN as 0 here.
            numbers = {key: (value, start) for key, value in run.data.metrics.items() if not math.isnan(value)}
            self._connection.log_batch(run_id, metrics=numbers, of={"model_id": model, **_data_of(run.data.params)})
            # As for runs: MLflow's page of models shows READY in green.
            status = "READY" if tags.get(Tag.VERDICT) == "good" else "FAILED"
            self._call(self._connection.client.finalize_logged_model, model, status)
        except (errors.TrackingUnavailableError, errors.NoRoomError):
            raise
        except (errors.TrackingError, ValueError, TypeError, AttributeError) as exc:  # the layers may be damaged
            log.warning("The engine of run %s is not among MLflow's logged models: %s", run_id, exc)

    def _create(self, run: Any, files: Files) -> str:
        from mlflow.entities import LoggedModelOutput

        linked_tags = (Tag.ENGINE_SHA256, Tag.MODEL_SHA256, Tag.BACKEND, Tag.VERDICT, Tag.KIND)
        tags = {tag: run.data.tags[tag] for tag in linked_tags if tag in run.data.tags}
        layers = json.loads(files.peek(Artifact.LAYERS) or b"[]")
        choices = json.loads(files.peek(Artifact.TACTICS) or b"{}").get("choices", ())
        # TensorRT's inspector and its selector of tactics may name kernels differently; deny-lists have the second.
        for kernels in (Counter(str(layer.get("tactic")) for layer in records) for records in (choices, layers)):
            tags |= {kernel_tag(kernel): str(count) for kernel, count in kernels.items() if kernel != "None"}
        params = {name: value for name, value in run.data.params.items() if not name.startswith("evidence.")}
        name = re.sub("[/:.%\"']", "-", run.info.run_name or "engine").lstrip("".join(MARKS.values()) + " ")
        logged_model = self._call(
            self._connection.client.create_logged_model,
            run.info.experiment_id, name or "engine", run.info.run_id, tags, params, "engine",
        )  # fmt: skip
        self._call(self._connection.client.log_outputs, run.info.run_id, [LoggedModelOutput(logged_model.model_id, 0)])
        return str(logged_model.model_id)

    def link(self, engine: str, params: Mapping[str, str]) -> Mapping[str, str]:
        """What connects metrics with a run's engine, for ``Connection.log_batch``; ``params`` name their data."""
        model = None
        with contextlib.suppress(errors.RunNotFoundError):
            run = self._call(self._connection.client.get_run, engine)
            if (holder := run.data.tags.get(Tag.REUSED_FROM)) is not None:
                run = self._call(self._connection.client.get_run, holder)
            model = _model_of(run)
        if model is None:
            return {}
        return {"model_id": model, **_data_of(params)}

    def add_version(self, run_id: str, name: str, version: str) -> None:
        """Link a registered version to the logged model of a run's engine, if it has one."""
        client = self._connection.client
        if (model := _model_of(self._call(client.get_run, run_id))) is not None:
            versions = {*_versions_of(self._call(client.get_logged_model, model)), (name, version)}
            listed = [{"name": name, "version": version} for name, version in sorted(versions)]
            self._call(client.set_logged_model_tags, model, {VERSIONS: json.dumps(listed)})

    def search(
        self,
        experiments: list[str],
        query: EngineQuery,
        verdict: str | None,
        versions: Collection[tuple[str, str]] | None,
        limit: int | None,
    ) -> list[tuple[str, float | None]]:
        """Runs with matching engines, and the value of ``query.best`` as their sort key.

        With ``versions``, as name and version, only engines that are registered as one of them.
        """
        conditions = [] if verdict is None else [f"tags.`{Tag.VERDICT}` = {_quoted(verdict)}"]
        if versions is not None:
            conditions.append(f"tags.`{VERSIONS}` != ''")
        if query.kernel:
            conditions.append(f"tags.`{kernel_tag(query.kernel)}` != ''")
        if query.device:
            conditions.append(f"params.`env.device` = {_quoted(query.device)}")
        for metric, value in query.above:
            conditions.append(f"metrics.`{metric}` > {value!r}")
        name, _, digest = query.data.rpartition("@") if "@" in query.data else (query.data, "", "")
        data = {"dataset_name": name} if name else {}
        data |= {"dataset_digest": digest} if digest else {}
        order = [{"field_name": f"metrics.{query.best}", "ascending": True, **data}] if query.best else None
        # MLflow's server takes a missing digest for an empty one. The best come first anyway.
        datasets = [data] if not order and (digest or (name and self._connection.store)) else None
        matches: list[tuple[str, float | None]] = []
        for model in self._pages(
            self._connection.client.search_logged_models, experiments, filter_string=" and ".join(conditions),
            datasets=datasets, order_by=order, size=min(limit or 100, 100),
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
                and (versions is None or not _versions_of(model).isdisjoint(versions))
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


def kernel_tag(kernel: str) -> str:
    """The tag of a logged model for a kernel; its value is the number of layers with it."""
    return schema.metric_key(schema.fitting(("kernel", kernel)))


def _versions_of(model: Any) -> set[tuple[str, str]]:
    """Name and version of each registered version of a logged model; none if its tag is damaged."""
    with contextlib.suppress(ValueError, TypeError, LookupError):
        return {
            (str(version["name"]), str(version["version"])) for version in json.loads(model.tags.get(VERSIONS, "[]"))
        }
    return set()


def _model_of(run: Any) -> str | None:
    outputs = run.outputs.model_outputs if run.outputs else []
    return next((str(output.model_id) for output in outputs), None)


def _data_of(params: Mapping[str, str]) -> dict[str, str]:
    """The data of a run's evaluation, under its name in MLflow, from the run's params."""
    name, digest = (params.get(f"evidence.{param}") for param in ("source", "data"))
    return {"dataset_name": name[:500], "dataset_digest": digest} if name and digest else {}
