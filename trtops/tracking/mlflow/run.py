"""One run in MLflow: being written, and read."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import errors
from trtops.tracking import owner, schema
from trtops.tracking.base import ArtifactEntry, Manifest, MetricName, RunInfo, RunStatus
from trtops.tracking.materials import Materials
from trtops.tracking.mlflow.artifacts import Files
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.mlflow.datasets import dataset_inputs
from trtops.tracking.run import Run, StoredRun

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRunEntity

log = logging.getLogger(__name__)


class MlflowRun(Run):
    """A run in MLflow, being written."""

    def __init__(self, connection: Connection, entity: MlflowRunEntity, files: Files) -> None:
        super().__init__(entity.info.run_id, connection.url(entity.info.experiment_id, entity.info.run_id))
        self._connection = connection
        self._files = files
        self._started = int(entity.info.start_time)
        self._over = False
        self._resumed_by: owner.Owner | None = None
        self._beating = threading.Lock()
        self._verdict = entity.data.tags.get(schema.Tag.VERDICT)
        self._metrics = {key: schema.read_number(value) for key, value in entity.data.metrics.items()}
        self._timestamps: dict[str, int] = {}

    def beat(self) -> bool:
        """Send a heartbeat; False once the run has ended, or another process owns it."""
        with self._beating:
            try:
                return not self._over and self._renew_heartbeat()
            except Exception as exc:  # the store may raise anything while it is away; the next beat may succeed
                log.debug("Run %s: no heartbeat (%s).", self.id, exc)
                return True

    def _renew_heartbeat(self) -> bool:
        client = self._connection.client
        found = client.get_run(self.id)
        own = owner.Owner.from_json(found.data.tags.get(schema.Tag.OWNER, ""))
        if own.pid != os.getpid() or own.place != owner.current().place or owner.is_gone(own):
            self._resumed_by = own
            return False
        if found.info.status in ("FINISHED", "FAILED"):  # ended through another object of this process
            return False
        if found.info.status != "RUNNING":  # this process was taken for dead
            client.update_run(self.id, status="RUNNING")
            if schema.Tag.ERROR in found.data.tags:
                client.delete_tag(self.id, schema.Tag.ERROR)
        client.set_tag(self.id, schema.Tag.HEARTBEAT, owner.tags_of_owner()[schema.Tag.HEARTBEAT])
        return True

    def _must_be_ours(self) -> None:
        if (other := self._resumed_by) is not None:
            raise errors.LogError(
                f"Run {self.id} was resumed by process {other.pid} on {other.host}, since this process sent no "
                "heartbeat. The results of this process are discarded."
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
            stored[schema.key(name)] = schema.shortened(value, schema.MAX_PARAM)
            tags |= schema.key_overflow(name) | schema.overflow_tags(value, schema.MAX_PARAM)
        self._connection.log_batch(self.id, params=stored, tags=tags)

    def _put_tags(self, tags: Mapping[str, str]) -> None:
        self._must_be_ours()
        self._connection.log_batch(self.id, tags=stored_tags(tags))
        self._verdict = tags.get(schema.Tag.VERDICT, self._verdict)

    def _put_metrics(self, metrics: Mapping[MetricName, float]) -> None:
        self._must_be_ours()
        changed: dict[str, float] = {}
        tags: dict[str, str] = {}
        for name, value in metrics.items():
            key = schema.metric_key(name)
            before = self._metrics.get(key)
            if before is None or not (before == value or (math.isnan(before) and math.isnan(value))):
                changed[key] = value
                self._timestamps[key] = self._next_timestamp(key)
                tags |= schema.name_overflow(name)
        stored = {key: (schema.stored_number(value), self._timestamps[key]) for key, value in changed.items()}
        self._connection.log_batch(self.id, metrics=stored, tags=tags)
        self._metrics.update(changed)

    def _next_timestamp(self, key: str) -> int:
        """The timestamp for a metric: of two values with the same one MLflow shows the larger, not the newer."""
        if key in self._timestamps:
            return self._timestamps[key] + 1
        if key not in self._metrics:
            return self._started
        # An earlier process logged it, and this run was reopened.
        history = self._connection.call(self._connection.client.get_metric_history, self.id, key)
        return max(int(each.timestamp) for each in history) + 1

    def _put_artifact(self, source: Path | bytes, path: str) -> ArtifactEntry:
        self._must_be_ours()
        entry = self._files.put(source, path)
        if path == schema.Artifact.MATERIALS:
            try:  # the build's data as MLflow's own data sets, which the run does not depend on
                inputs = dataset_inputs(
                    Materials.from_json(source if isinstance(source, bytes) else source.read_bytes())
                )
                if inputs:
                    self._connection.call(self._connection.client.log_inputs, self.id, inputs)
            except (errors.TrtopsError, ValueError) as exc:
                log.warning("Run %s: its data could not be logged as a data set (%s).", self.id, exc)
        return entry

    def _end(self, status: RunStatus, at: float | None = None) -> None:
        self._must_be_ours()
        with self._beating:  # a heartbeat would set the ended run running again
            self._connection.end(self.id, shown_status(status, self._verdict), at)
            self._over = True


class MlflowStoredRun(StoredRun):
    """A complete run in MLflow."""

    def __init__(self, info: RunInfo, manifest: Manifest, files: Files) -> None:
        super().__init__(info, manifest)
        self._files = files

    def unlisted(self, path: str) -> bytes | None:
        """A file that the manifest does not name."""
        return self._files.peek(path)

    def _fetch(self, entry: ArtifactEntry) -> Path | None:
        return self._files.get(entry)


def shown_status(status: RunStatus, verdict: str | None) -> str:
    """The status in MLflow: a finished run with a bad verdict must not have a green check in its tables."""
    return "FAILED" if status == "finished" and verdict in ("bad", "error") else status.upper()


def read_status(shown: str, tags: Mapping[str, str]) -> RunStatus:
    """The status that :func:`shown_status` was given: only a finished run has a manifest."""
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
    """Tags as MLflow accepts them: names encoded, long texts shortened and kept in further tags."""
    stored: dict[str, str] = {}
    for name, value in tags.items():
        schema.check_value(f"Tag {name!r}", value)
        stored |= schema.key_overflow(name) | schema.overflow_tags(value, schema.MAX_TAG)
        stored[schema.key(name)] = schema.shortened(value, schema.MAX_TAG)
    return stored
