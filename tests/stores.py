"""Copies of a template store, which take milliseconds where a new store takes seconds."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from trtops.tracking.mlflow.store_log import EXPERIMENT


def copy_store(template: Path, root: Path) -> Path:
    """Copy an embedded store, and make its artifact addresses point to the copy."""
    shutil.copytree(template, root)
    set_root(root)
    return root


def set_root(root: Path) -> None:
    """Make the artifact addresses of a store that was copied point to its present folder."""
    [(location,)] = execute(root, "SELECT artifact_location FROM experiments WHERE experiment_id = 0")
    former = str(Path(location).parents[1])
    with closing(opened(root)) as database, database:
        for table, column in (
            ("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"),
            ("model_versions", "source"), ("model_versions", "storage_location"),
        ):  # fmt: skip
            database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (former, str(root)))


def opened(root: Path) -> sqlite3.Connection:
    """A store's database, which does not wait for the disk."""
    database = sqlite3.connect(root / "mlflow.db")
    database.execute("PRAGMA synchronous = OFF")
    return database


def execute(root: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Execute a statement in a store's database, and return the rows found."""
    with closing(opened(root)) as database, database:
        return database.execute(statement, values).fetchall()


def delete_log(root: Path) -> None:
    """Make a store as an earlier release wrote it, without a log."""
    page = "SELECT run_uuid FROM runs JOIN experiments USING (experiment_id) WHERE experiments.name = ?"
    for table in ("params", "tags", "runs"):
        execute(root, f"DELETE FROM {table} WHERE run_uuid IN ({page})", EXPERIMENT)
