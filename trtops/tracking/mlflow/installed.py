"""MLflow as it is installed: imported quietly, its databases and server, and its exceptions as errors of ours."""

from __future__ import annotations

import functools
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.masking import masked

if TYPE_CHECKING:
    from trtops.tracking.location import Store

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # Trying again is for trtops.tracking.mlflow.connection: MLflow would make a run twice if its first answer was lost.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}


def library() -> Any:
    """MLflow, imported so that it is quiet, calls nobody, and leaves it to us when to give up on a server."""
    for (
        name,
        value,
    ) in _QUIET.items():  # every time: MLflow reads them at each call, and a host program may have restored its own
        os.environ.setdefault(name, value)
    return _imported()


@functools.cache
def _imported() -> Any:
    import mlflow
    import mlflow.tracking.context.registry

    # It prints the stack of every database error that it then raises, and a line for every migration.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return mlflow


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
    """Make a database with the installed MLflow's schema and its default experiment under ``artifacts``. Takes seconds.

    Raises:
        TrackingError: If it cannot be made, such as on a full disk.
    """
    library()
    from mlflow.exceptions import MlflowException
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy.exc import SQLAlchemyError

    try:
        SqlAlchemyStore(f"sqlite:///{file}", str(artifacts))._dispose_engine()  # type: ignore[no-untyped-call]
    except (SQLAlchemyError, MlflowException) as exc:
        raise translated(exc, str(file.parent)) from exc
    finally:
        SqlAlchemyStore._engine_map.pop(f"sqlite:///{file}", None)


def upgrade_database(file: Path) -> None:
    """Bring a database to the installed MLflow's schema, in place."""
    library()
    import sqlalchemy
    from mlflow.store.db.utils import _upgrade_db

    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    try:
        _upgrade_db(engine)  # type: ignore[no-untyped-call]
    finally:
        engine.dispose()


def server_command(store: Store, port: int) -> tuple[list[str], dict[str, str]]:
    """The command that serves an embedded store and its UI on this machine, and the environment it needs."""
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", store.uri, "--artifacts-destination", str(store.artifacts)),
    ]
    return command, {**_QUIET, **os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


_NO_ROOM = {
    "disk is full": "the disk is full. Make room and run again",
    "No space left": "the disk is full. Make room and run again",
    "Disk quota exceeded": "the disk quota is used up. Make room and run again",
    "readonly database": "it is read-only",
    "Read-only file system": "it is on a read-only file system",
}
"""What an error's text has in it when nothing more can be written, and how that is told."""


def translated(exc: Exception, location: str) -> errors.TrackingError:
    """MLflow's exception, or its HTTP client's, as one of ours."""
    text, code = masked(str(exc)), getattr(exc, "error_code", "")
    if (why := next((why for said, why in _NO_ROOM.items() if said in text), None)) is not None:
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
    if _is_transient(exc, text, code):
        return errors.TrackingUnavailableError(f"{location} did not answer: {text:.500} Try again when it does.")
    response = getattr(exc, "response", None)
    if response is not None:
        return errors.LogError(f"{location} answered {response.status_code}: {text:.500}")
    return errors.StoreError(f"{location}: {text:.500}")


def _is_transient(exc: Exception, text: str, code: str) -> bool:
    import requests

    if isinstance(exc, (requests.ConnectionError, requests.Timeout)):
        return True
    if isinstance(exc, requests.HTTPError):
        return exc.response is not None and exc.response.status_code in (429, 502, 503, 504)
    if "API request to" in text and ("failed with exception" in text or "timeout exception" in text):
        return True
    return code == "TEMPORARILY_UNAVAILABLE" and "unable to open" not in text and "readonly" not in text
