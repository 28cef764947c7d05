"""Create and open an embedded store safely, under a lock.

MLflow makes a database wherever it finds none, without a lock. So the database is made here, under a lock, and appears
whole. A store of another release of MLflow is opened, upgraded or refused by MLflow itself.
"""

import functools
import logging
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from trtops import errors
from trtops.system.locks import locked
from trtops.system.processes import temporary_prefix
from trtops.tracking.location import Store, resolve
from trtops.tracking.mlflow.installed import SETTINGS, library, translated

log = logging.getLogger(__name__)

# Free bytes below which a disk is taken to be full.
_LITTLE = 1 << 16


def ensure_store(location: str | Path | Store | None = None) -> Store:
    """An existing embedded store.

    Any number of processes may call this at once for a missing store: one makes it, all get it.
    """
    store = location if isinstance(location, Store) else resolve(location)
    if not isinstance(store, Store):
        raise errors.StoreError(f"{store} is a server; expected an embedded store's folder. Run this on its machine.")
    if not store.database.exists():
        _create_store(store)
    _check_database(store)
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
            log.info("Making the store in %s (once).", store.root)
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


def _check_database(store: Store) -> None:
    """Reject a file other than MLflow's database, before MLflow converts it. Schemas are left to MLflow."""
    try:
        with closing(sqlite3.connect(f"{store.database.as_uri()}?mode=ro", uri=True, timeout=20)) as database:
            # Alembic's own table.
            database.execute("SELECT version_num FROM alembic_version").fetchall()
    # Text that is not Unicode is a ValueError.
    except (OSError, sqlite3.Error, ValueError) as exc:
        text = f"{store.database} cannot be used as an MLflow database: {exc}. Restore it from a backup."
        raise store_error(exc, store, text) from exc


def store_error(exc: Exception, store: Store, otherwise: str) -> errors.TrackingError:
    """An error of SQLite, or of MLflow about it, as one of ours; StoreError with a given text if nothing else fits."""
    error = translated(exc, str(store.root))
    if isinstance(error, errors.NoRoomError) or error.transient:
        return error
    # In WAL mode, SQLite must write even to read, and reports in several ways that it cannot.
    if store.root.exists() and shutil.disk_usage(store.root).free < _LITTLE:
        return errors.NoRoomError(f"{store.root} could not be written: the disk is full. Free some space and run again")
    if "unable to open" in str(exc) and not os.access(store.root, os.W_OK):
        return errors.NoRoomError(f"Store {store.root} is read-only here. Serve it instead: trtops store ui")
    return errors.StoreError(otherwise)


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
    """The command to serve an embedded store and its UI on this machine, and its environment."""
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
