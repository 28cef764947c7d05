"""The runs of an embedded store as its database has them, read without MLflow: in milliseconds, deleted ones included."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtops.tracking.location import Store
from trtops.tracking.mlflow.artifacts import local_folder
from trtops.tracking.mlflow.embedded import open_database
from trtops.tracking.mlflow.run import read_status
from trtops.tracking.schema import Tag


@dataclass(frozen=True)
class RunRow:
    """A run.

    Attributes:
        id: Its id.
        name: Its name.
        finished: Whether it ended in order.
        deleted: Whether it was deleted, softly: its files are there until they are collected.
        ours: Whether trtops started it.
        folder: Its artifacts; None if they are on no disk of this machine.
    """

    id: str
    name: str
    finished: bool
    deleted: bool
    ours: bool
    folder: Path | None


def run_rows(store: Store) -> list[RunRow]:
    """Every run of an embedded store.

    Raises:
        StoreError: If its database cannot be read.
    """
    value = "(SELECT value FROM tags WHERE tags.run_uuid = runs.run_uuid AND tags.key = ?)"
    query = f"SELECT run_uuid, name, status, lifecycle_stage, {value}, {value}, artifact_uri FROM runs"
    with open_database(store) as database:
        rows = database.execute(query, (Tag.KIND, Tag.MANIFEST_SHA256)).fetchall()
    return [
        RunRow(
            run_id,
            name or "",
            read_status(status, {Tag.MANIFEST_SHA256: sealed or ""}) == "finished",
            stage != "active",
            kind is not None,
            local_folder(store, uri or ""),
        )
        for run_id, name, status, stage, kind, sealed, uri in rows
    ]
