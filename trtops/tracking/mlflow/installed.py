"""The installed MLflow: imported quietly, its databases and server, and its exceptions as errors of ours."""

from __future__ import annotations

import functools
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.system.masking import masked

if TYPE_CHECKING:
    from trtops.tracking.location import Store

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # trtops.tracking.mlflow.connection retries: MLflow would make a run twice if its first answer was lost.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}


def library() -> Any:
    """MLflow, imported without output and telemetry. Retries are left to trtops."""
    # Each time: MLflow reads them at each call, and a program may restore its own.
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    return _imported()


@functools.cache
def _imported() -> Any:
    import mlflow
    import mlflow.tracking.context.registry

    # It prints the traceback of every database error that it then raises, and a line for every migration.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return mlflow


@functools.cache
def drop_connections_after_fork() -> None:
    """Make SQLAlchemy's pools drop the connections of a parent process, which SQLite cannot share (from its manual)."""
    from sqlalchemy import event, exc, pool

    @event.listens_for(pool.Pool, "connect")
    def note_process(connection: Any, record: Any) -> None:
        record.info["pid"] = os.getpid()

    @event.listens_for(pool.Pool, "checkout")
    def check_process(connection: Any, record: Any, proxy: Any) -> None:
        if record.info.get("pid", os.getpid()) != os.getpid():
            record.dbapi_connection = proxy.dbapi_connection = None
            raise exc.DisconnectionError("The connection belongs to the parent process.")


def release() -> str:
    """The installed MLflow's release."""
    return str(library().__version__)


@functools.cache
def known_revisions() -> tuple[str, ...]:
    """The revisions of the database schema that the installed MLflow knows, its own first."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(library().__file__).parent / "store" / "db_migrations"))
    return tuple(script.revision for script in scripts.walk_revisions())


def create_database(file: Path, artifacts: Path) -> None:
    """Make a database with the installed MLflow's schema and its default experiment; takes seconds."""
    library()
    from mlflow.exceptions import MlflowException
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy.exc import SQLAlchemyError

    try:
        SqlAlchemyStore(f"sqlite:///{file}", str(artifacts))  # type: ignore[no-untyped-call]
    except (SQLAlchemyError, MlflowException) as exc:
        raise translated(exc, str(file.parent)) from exc


def server_command(store: Store, port: int) -> tuple[list[str], dict[str, str]]:
    """The command that serves an embedded store and its UI on this machine, and its environment."""
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", store.uri, "--artifacts-destination", str(store.artifacts)),
    ]
    return command, {**_SETTINGS, **os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


_NO_SPACE = {
    "disk is full": "the disk is full. Free some space and run again",
    "No space left": "the disk is full. Free some space and run again",
    "Disk quota exceeded": "the disk quota is used up. Free some space and run again",
    "readonly database": "it is read-only",
    "Read-only file system": "it is on a read-only file system",
}
"""Parts of error texts that mean that nothing can be written, with their explanations."""


def translated(exc: Exception, location: str) -> errors.TrackingError:
    """MLflow's exception, or its HTTP client's, as one of ours."""
    import requests

    text, code = masked(str(exc)), getattr(exc, "error_code", "")
    response = getattr(exc, "response", None)
    if (why := next((why for part, why in _NO_SPACE.items() if part in text), None)) is not None:
        return errors.NoRoomError(f"{location} could not be written: {why}.")
    if code == "RESOURCE_DOES_NOT_EXIST":
        return errors.RunNotFoundError(f"{location}: {text}")
    if code == "INVALID_PARAMETER_VALUE":
        return errors.LogError(f"{location} refused it: {text}")
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return errors.StoreError(
            f"{location} refused access: {text} Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "TRTOPS_CREDENTIALS to a file with both."
        )
    transient = (
        isinstance(exc, (requests.ConnectionError, requests.Timeout))
        or (response is not None and response.status_code in (429, 502, 503, 504))
        or ("API request to" in text and ("failed with exception" in text or "timeout exception" in text))
        or (code == "TEMPORARILY_UNAVAILABLE" and "unable to open" not in text and "readonly" not in text)
    )
    if transient:
        return errors.TrackingUnavailableError(f"{location} did not answer: {text:.500} Try again when it does.")
    if response is not None:
        return errors.LogError(f"{location} answered {response.status_code}: {text:.500}")
    return errors.StoreError(f"{location}: {text:.500}")
