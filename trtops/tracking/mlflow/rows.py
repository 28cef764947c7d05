"""All runs of a store, deleted ones included: an embedded store's from its database, in milliseconds, a server's by asking it."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtops.tracking.location import Store
from trtops.tracking.mlflow.artifacts import local_folder
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.mlflow.embedded import open_database
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
    kind = "SELECT 1 FROM tags WHERE tags.run_uuid = runs.run_uuid AND tags.key = ?"
    query = f"SELECT run_uuid, name, status, lifecycle_stage, EXISTS({kind}), artifact_uri FROM runs"
    with open_database(store) as database:
        rows = database.execute(query, (Tag.KIND,)).fetchall()
    return [
        RunRow(run_id, name or "", status == "FINISHED", stage != "active", bool(ours), local_folder(store, uri or ""))
        for run_id, name, status, stage, ours, uri in rows
    ]


def served_run_rows(connection: Connection, artifacts: Path) -> list[RunRow]:
    """Every run that a server shows.

    Args:
        connection: To the server.
        artifacts: The folder that it keeps artifacts in (its ``--artifacts-destination``).

    Raises:
        TrackingError: If the server does not answer, or refuses.
    """
    client, everything = connection.client, _ALL
    experiments = _pages(connection, client.search_experiments, view_type=everything)
    ids = [experiment.experiment_id for experiment in experiments]
    runs = _pages(connection, client.search_runs, ids, run_view_type=everything) if ids else []
    return [
        RunRow(
            id=run.info.run_id,
            name=run.info.run_name or "",
            finished=run.info.status == "FINISHED",
            deleted=run.info.lifecycle_stage != "active",
            ours=Tag.KIND in run.data.tags,
            folder=_served_folder(artifacts, run.info.artifact_uri or ""),
        )
        for run in runs
    ]


_ALL = 3
"""MLflow's ``ViewType.ALL``."""


def _pages(connection: Connection, search: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
    found: list[Any] = []
    token: str | None = None
    while True:
        page = connection.call(search, *arguments, **options, max_results=1000, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def _served_folder(artifacts: Path, uri: str) -> Path | None:
    """Where the files are that a server hands out under an address; None if it does not keep them in that folder."""
    address = urllib.parse.urlparse(uri)
    parts = [part for part in address.path.split("/") if part]
    return None if address.scheme != "mlflow-artifacts" or ".." in parts else artifacts.joinpath(*parts)
