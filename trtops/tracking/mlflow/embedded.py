"""An embedded store that is safe to open: made under a lock, and with the schema of the installed MLflow.

MLflow makes a database wherever it finds none, without a lock, and upgrades an old one without asking. So the
database is made here, under a lock, and appears whole; and its version is checked before MLflow opens it.
"""

import functools
import math
import os
import re
import shlex
import sqlite3
import sys
import tempfile
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from trtops import errors
from trtops.system.locks import locked
from trtops.system.processes import temporary_prefix
from trtops.tracking.location import Store, resolve
from trtops.tracking.mlflow.installed import SETTINGS, library, translated


def ensure_store(location: str | Path | Store | None = None) -> Store:
    """An embedded store that exists and has the schema of the installed MLflow.

    Any number of processes may call this at once for a missing store: one makes it, all get it.
    """
    store = location if isinstance(location, Store) else resolve(location)
    if not isinstance(store, Store):
        raise errors.StoreError(f"{store} is a server; expected an embedded store's folder. Run this on its machine.")
    if not store.database.exists():
        _create_store(store)
    _check_version(store)
    return store


def _create_store(store: Store) -> None:
    """Make a database with MLflow's schema and default experiment; takes seconds."""
    library()
    from mlflow.exceptions import MlflowException
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with locked(store.root / ".init.lock"):
            if store.database.exists():
                return
            for leftover in store.root.glob(f".{store.database.name}.*"):
                leftover.unlink()
            building = store.root / f".{store.database.name}.{os.getpid()}"
            SqlAlchemyStore(f"sqlite:///{building}", str(store.artifacts))  # type: ignore[no-untyped-call]
            # Readers do not wait for a writer, so that the UI works while runs are logged.
            with closing(sqlite3.connect(building)) as database:
                database.execute("PRAGMA journal_mode = WAL")
            os.rename(building, store.database)
    except (SQLAlchemyError, MlflowException) as exc:
        raise translated(exc, str(store.root)) from exc
    except OSError as exc:
        raise errors.StoreError(
            f"Store {store.root} cannot be made: {exc.strerror or exc}. Set TRTOPS_HOME to another folder."
        ) from exc


def _check_version(store: Store) -> None:
    """Refuse a store that another MLflow release wrote, before MLflow can change it."""
    try:
        address = f"{store.database.as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=20)) as database:
            # Alembic's own table, read without MLflow, which would upgrade the database when it opens it.
            [(found,)] = database.execute("SELECT version_num FROM alembic_version").fetchall()
    # Text that is not Unicode is a ValueError.
    except (OSError, sqlite3.Error, ValueError) as exc:
        raise errors.StoreError(
            f"{store.database} cannot be used as an MLflow database: {exc}. Restore it from a backup."
        ) from exc
    head, *older = known_revisions()
    if found == head:
        return
    start = f"Store {store.root} has MLflow schema {found}; the installed MLflow {library().__version__} has {head}."
    if found in older:
        raise errors.StoreError(
            f"{start} It is older. Copy {store.database.name}, then upgrade it by: "
            f"mlflow db upgrade {shlex.quote(store.uri)}"
        )
    raise errors.StoreError(
        f"{start} A newer MLflow wrote it, and nothing was changed. Install that release, or set "
        "TRTOPS_HOME to another folder."
    )


def metric_history(store: Store, run_id: str) -> dict[str, tuple[float, ...]]:
    """All values of each metric of a run, in order."""
    # MLflow's client reads one metric at a time, which takes longer than the rest of an audit.
    found: dict[str, list[float]] = {}
    query = "SELECT key, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp"
    for key, value, is_nan in _select(store, query, run_id):
        found.setdefault(key, []).append(math.nan if is_nan else value)
    return {key: tuple(values) for key, values in found.items()}


def run_rows(store: Store, names: Collection[str]) -> list[Any]:
    """All runs, as MLflow's client returns them, but with these tags only, and without params and metrics."""
    # MLflow's client takes a millisecond for each run.
    tags: dict[str, dict[str, str]] = {}
    query = f"SELECT run_uuid, key, value FROM tags WHERE key IN ({', '.join('?' * len(names))})"
    for run_id, key, value in _select(store, query, *names):
        tags.setdefault(run_id, {})[key] = value
    columns = "name AS run_name, status, start_time, end_time, lifecycle_stage, artifact_uri"
    found = []
    for row in _select(store, f"SELECT run_uuid AS run_id, experiment_id, {columns} FROM runs"):
        info = SimpleNamespace(**{**row, "experiment_id": str(row["experiment_id"])})
        data = SimpleNamespace(tags=tags.get(info.run_id, {}), params={}, metrics={})
        found.append(SimpleNamespace(info=info, data=data))
    return found


def accepted_runs(store: Store) -> set[str]:
    """The runs that aliases of the registry point to."""
    # MLflow's client takes 0.2 ms for each version of each model.
    query = "SELECT run_id FROM model_versions JOIN registered_model_aliases USING (name, version)"
    return {row["run_id"] for row in _select(store, query)}


def params_by_run(store: Store, experiment_id: str) -> list[Any]:
    """The runs of an experiment with params, deleted ones too, as MLflow's client returns them, with these only."""
    runs: dict[str, Any] = {}
    columns = "run_uuid, lifecycle_stage, key, value FROM params JOIN runs USING (run_uuid)"
    for run_id, stage, key, value in _select(store, f"SELECT {columns} WHERE experiment_id = ?", experiment_id):
        if run_id not in runs:
            info, data = SimpleNamespace(lifecycle_stage=stage), SimpleNamespace(params={})
            runs[run_id] = SimpleNamespace(info=info, data=data)
        runs[run_id].data.params[key] = value
    return [*runs.values()]


def _select(store: Store, query: str, *values: str) -> list[Any]:
    try:
        with closing(sqlite3.connect(f"{store.database.as_uri()}?mode=ro", uri=True, timeout=20)) as database:
            database.row_factory = sqlite3.Row
            return database.execute(query, values).fetchall()
    except (sqlite3.Error, ValueError) as exc:
        raise errors.StoreError(f"{store.database} cannot be read: {exc}. Restore it from a backup.") from exc


@functools.cache
def known_revisions() -> tuple[str, ...]:
    """The revisions of the database schema that the installed MLflow knows, its own first."""
    # Alembic would import all scripts, which takes a fifth of a short command's time.
    scripts = Path(library().__file__).parent.glob("store/db_migrations/versions/*.py")
    pattern = re.compile(r'^revision = "(\w+)"$.*?^down_revision = (?:"(\w+)"|None)$', re.M | re.S)
    before = {found[1]: found[2] for script in scripts if (found := pattern.search(script.read_text("utf-8")))}
    [revision] = before.keys() - before.values()
    revisions = [revision]
    while (revision := before[revision]) is not None:
        revisions.append(revision)
    return tuple(revisions)


@functools.cache
def drop_connections_after_fork() -> None:
    """Make SQLAlchemy's pools drop the connections of a parent process."""
    # SQLite cannot share them; the two listeners are from SQLAlchemy's manual.
    from sqlalchemy import event, exc, pool

    @event.listens_for(pool.Pool, "connect")
    def note_process(connection: Any, record: Any) -> None:
        record.info["pid"] = os.getpid()

    @event.listens_for(pool.Pool, "checkout")
    def check_process(connection: Any, record: Any, proxy: Any) -> None:
        if record.info.get("pid", os.getpid()) != os.getpid():
            record.dbapi_connection = proxy.dbapi_connection = None
            raise exc.DisconnectionError("The connection belongs to the parent process.")


def server_command(store: Store, port: int) -> tuple[list[str], dict[str, str]]:
    """The command that serves an embedded store and its UI on this machine, and its environment."""
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", store.uri, "--artifacts-destination", str(store.artifacts)),
    ]
    # MLflow's jobs would start further processes, and trtops uses none.
    return command, {**SETTINGS, **os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def serve(location: str | Path | None = None, *, port: int = 5000) -> NoReturn:
    """Show an embedded store in MLflow's UI, and serve it to this machine, replacing the calling process."""
    store = ensure_store(location)
    command, environment = server_command(store, port)
    print(
        f"http://127.0.0.1:{port}/#/experiments?workflowType=machine_learning shows {store.root}; Ctrl+C ends it.",
        flush=True,
    )
    # The server imports modules from its working folder, so it gets an empty one; `trtops store reap` removes it.
    os.chdir(tempfile.mkdtemp(prefix=temporary_prefix("server")))
    os.execve(command[0], command, environment)
