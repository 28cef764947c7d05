"""One run kept by MLflow: being written, and read."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import errors
from trtops.tracking import owner, schema
from trtops.tracking.base import ArtifactEntry, Manifest, MetricName, RunInfo, RunStatus
from trtops.tracking.materials import read_materials
from trtops.tracking.mlflow.artifacts import Files
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.mlflow.datasets import dataset_inputs
from trtops.tracking.writer import RunReader, RunWriter

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRunEntity

log = logging.getLogger(__name__)


class MlflowRun(RunWriter):
    """A run kept by MLflow, being written."""

    def __init__(self, connection: Connection, entity: MlflowRunEntity, files: Files) -> None:
        super().__init__(entity.info.run_id, connection.url(entity.info.experiment_id, entity.info.run_id))
        self._connection = connection
        self._files = files
        self._started = int(entity.info.start_time)
        self._over = False
        self._taken_by: owner.Owner | None = None
        self._beating = threading.Lock()
        tags = entity.data.tags
        self._verdict = tags.get(schema.Tag.VERDICT)
        self._metrics: dict[str, tuple[float, int]] = {
            m.key: (schema.read_number(m.key, m.value, tags), int(m.timestamp)) for m in entity.data._metric_objs
        }

    def beat(self) -> bool:
        """Say that this process is at the run; False once it has ended, or is another process's."""
        with self._beating:
            try:
                return not self._over and self._is_ours_still()
            except Exception as exc:  # whatever a store that is away raises; the next beat may get through
                log.debug("Run %s: no heartbeat (%s).", self.id, exc)
                return True

    def _is_ours_still(self) -> bool:
        client = self._connection.client
        found = client.get_run(self.id)
        own = owner.Owner.from_json(found.data.tags.get(schema.Tag.OWNER, ""))
        if own != owner.current():
            self._taken_by = own
            return False
        if found.info.status in ("FINISHED", "FAILED"):  # ended through another object of this process
            return False
        if found.info.status != "RUNNING":  # somebody took this process for dead
            client.update_run(self.id, status="RUNNING")
            if schema.Tag.ERROR in found.data.tags:
                client.delete_tag(self.id, schema.Tag.ERROR)
        client.set_tag(self.id, schema.Tag.HEARTBEAT, owner.tags_of_owner()[schema.Tag.HEARTBEAT])
        return True

    def _must_be_ours(self) -> None:
        if (other := self._taken_by) is not None:
            raise errors.LogError(
                f"Run {self.id} was taken over by process {other.pid} on {other.host}, since nothing was heard of this one. "
                "What this process does for it no longer counts."
            )

    def _folders(self) -> list[Path]:
        return [self._files.folder]

    def _sync(self, paths: Iterable[str]) -> None:
        self._files.sync(paths)

    def _put_params(self, params: Mapping[str, str]) -> None:
        self._must_be_ours()
        stored: dict[str, str] = {}
        tags: dict[str, str] = {}
        for name, value in params.items():
            shown, rest = schema.shown_value(f"Param {name!r}", value, schema.MAX_PARAM)
            stored[schema.key(name)] = shown
            tags |= rest | schema.key_pieces(name)
        self._connection.log_batch(self.id, params=stored, tags=tags)

    def _put_tags(self, tags: Mapping[str, str]) -> None:
        self._must_be_ours()
        self._connection.log_batch(self.id, tags=stored_tags(tags))
        self._verdict = tags.get(schema.Tag.VERDICT, self._verdict)

    def _put_metrics(self, metrics: Mapping[MetricName, float]) -> None:
        self._must_be_ours()
        changed: dict[str, tuple[float, int]] = {}
        tags: dict[str, str] = {}
        for name, value in metrics.items():
            key = schema.metric_key(name)
            before, at = self._metrics.get(key, (None, self._started - 1))
            if before is not None and (before == value or (math.isnan(before) and math.isnan(value))):
                continue
            # Of two values with the same timestamp MLflow shows the larger, so a changed one is a millisecond later.
            changed[key] = (value, at + 1)
            tags |= schema.name_pieces(name)
            if abs(value) == schema.MAX_FLOAT or (before is not None and abs(before) == schema.MAX_FLOAT):
                tags[schema.finite_tag(key)] = str(abs(value) == schema.MAX_FLOAT).lower()
        stored = {key: (schema.stored_number(value), at) for key, (value, at) in changed.items()}
        self._connection.log_batch(self.id, metrics=stored, tags=tags)
        self._metrics.update(changed)

    def _put_artifact(self, source: Path | bytes, path: str) -> ArtifactEntry:
        self._must_be_ours()
        entry = self._files.put(source, path)
        if path == schema.Artifact.MATERIALS:
            self._log_datasets(source)
        return entry

    def _log_datasets(self, source: Path | bytes) -> None:
        """The data that a build is evaluated on, as MLflow's own entity; the run does not depend on it."""
        try:
            materials = read_materials(source if isinstance(source, bytes) else source.read_bytes())
            inputs = dataset_inputs(materials) if materials is not None else []
            if inputs:
                self._connection.call(self._connection.client.log_inputs, self.id, inputs)
        except (errors.TrtopsError, ValueError) as exc:
            log.warning("Run %s: its data could not be logged as a data set (%s).", self.id, exc)

    def _end(self, status: RunStatus, at: float | None = None) -> None:
        self._must_be_ours()
        with self._beating:  # a beat would have a run that has ended go on
            self._connection.end(self.id, shown_status(status, self._verdict), at)
            self._over = True

    def _put_failure(self, tags: Mapping[str, str]) -> None:
        try:
            super()._put_failure(tags)
        except errors.LogError:  # the disk may be full
            self._connection.give_reserve()
            super()._put_failure(tags)


class MlflowStoredRun(RunReader):
    """A whole run kept by MLflow."""

    def __init__(self, info: RunInfo, manifest: Manifest, files: Files) -> None:
        super().__init__(info, manifest)
        self._files = files

    def unlisted(self, path: str) -> bytes | None:
        """A file beside the manifest that it does not name."""
        return self._files.peek(path)

    def _fetch(self, entry: ArtifactEntry) -> Path | None:
        return self._files.get(entry)


def shown_status(status: RunStatus, verdict: str | None) -> str:
    """How MLflow is told that a run ended: one that finished with a bad verdict has no green check in its tables."""
    return "FAILED" if status == "finished" and verdict in ("bad", "error") else status.upper()


def read_status(shown: str, tags: Mapping[str, str]) -> RunStatus:
    """What :func:`shown_status` was given: a run that failed on the way has no manifest."""
    if shown == "FAILED" and tags.get(schema.Tag.MANIFEST_SHA256):
        return "finished"
    return _STATUS[shown]


_STATUS: dict[str, RunStatus] = {
    "RUNNING": "running",
    "SCHEDULED": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "killed",
}


def stored_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as MLflow takes them: names encoded, long texts in pieces."""
    stored: dict[str, str] = {}
    for name, value in tags.items():
        shown, rest = schema.shown_value(f"Tag {name!r}", value, schema.MAX_TAG)
        stored |= rest | schema.key_pieces(name) | {schema.key(name): shown}
    return stored
