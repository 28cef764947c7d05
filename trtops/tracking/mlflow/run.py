"""One run in MLflow, being written, and its status."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.tracking import schema
from trtops.tracking.base import ArtifactEntry, MetricName, RunStatus
from trtops.tracking.mlflow.artifacts import Files
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.run import Run

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRunEntity


class MlflowRun(Run):
    """A run in MLflow, being written."""

    def __init__(self, connection: Connection, entity: MlflowRunEntity, files: Files) -> None:
        super().__init__(entity.info.run_id, connection.url(entity.info.experiment_id, entity.info.run_id))
        self._connection = connection
        self._files = files
        self._started = int(entity.info.start_time)
        self._verdict = entity.data.tags.get(schema.Tag.VERDICT)
        self._metrics = {key: schema.read_number(value) for key, value in entity.data.metrics.items()}
        self._timestamps: dict[str, int] = {}

    def _sync(self, paths: Iterable[str]) -> None:
        self._files.sync(paths)

    def _put_params(self, params: Mapping[str, str]) -> None:
        self._connection.log_batch(self.id, params=params)

    def _put_tags(self, tags: Mapping[str, str]) -> None:
        self._connection.log_batch(self.id, tags=tags)
        self._verdict = tags.get(schema.Tag.VERDICT, self._verdict)

    def _put_metrics(self, metrics: Mapping[MetricName, float]) -> None:
        changed: dict[str, float] = {}
        for name, value in metrics.items():
            key = schema.metric_key(name)
            before = self._metrics.get(key)
            if before is None or not (before == value or (math.isnan(before) and math.isnan(value))):
                changed[key] = value
                self._timestamps[key] = self._next_timestamp(key)
        stored = {key: (schema.stored_number(value), self._timestamps[key]) for key, value in changed.items()}
        self._connection.log_batch(self.id, metrics=stored)
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
        return self._files.put(source, path)

    def _end(self, status: RunStatus, at: float | None = None) -> None:
        self._connection.end(self.id, shown_status(status, self._verdict), at)


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
