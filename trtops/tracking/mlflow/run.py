"""One run kept by MLflow: being written, and read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import errors
from trtops.tracking import schema
from trtops.tracking.base import ArtifactEntry, Manifest, MetricName, RunInfo, RunStatus
from trtops.tracking.mlflow.artifacts import Files
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.writer import RunReader, RunWriter

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRunEntity


class MlflowRun(RunWriter):
    """A run kept by MLflow, being written."""

    def __init__(self, connection: Connection, entity: MlflowRunEntity, files: Files) -> None:
        super().__init__(entity.info.run_id, connection.url(entity.info.experiment_id, entity.info.run_id))
        self._connection = connection
        self._files = files
        self._started = int(entity.info.start_time)
        tags = entity.data.tags
        self._metrics: dict[str, tuple[float, int]] = {
            m.key: (schema.read_number(m.key, m.value, tags), int(m.timestamp)) for m in entity.data._metric_objs
        }

    def _folders(self) -> list[Path]:
        return [self._files.folder]

    def _put_params(self, params: Mapping[str, str]) -> None:
        stored: dict[str, str] = {}
        tags: dict[str, str] = {}
        for name, value in params.items():
            shown, rest = schema.shown_value(f"Param {name!r}", value, schema.MAX_PARAM)
            stored[schema.key(name)] = shown
            tags |= rest | schema.key_pieces(name)
        self._connection.log_batch(self.id, params=stored, tags=tags)

    def _put_tags(self, tags: Mapping[str, str]) -> None:
        self._connection.log_batch(self.id, tags=stored_tags(tags))

    def _put_metrics(self, metrics: Mapping[MetricName, float]) -> None:
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
        return self._files.put(source, path)

    def _end(self, status: RunStatus, at: float | None = None) -> None:
        self._connection.end(self.id, status.upper(), at)

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

    def _fetch(self, entry: ArtifactEntry) -> Path | None:
        return self._files.get(entry)


def stored_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as MLflow takes them: names encoded, long texts in pieces."""
    stored: dict[str, str] = {}
    for name, value in tags.items():
        shown, rest = schema.shown_value(f"Tag {name!r}", value, schema.MAX_TAG)
        stored |= rest | schema.key_pieces(name) | {schema.key(name): shown}
    return stored
