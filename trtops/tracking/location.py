"""Where runs are stored: the parts of an embedded store, and how a location is resolved.

The embedded store is a folder, ``./mlruns`` unless ``TRTOPS_HOME`` names another::

    mlflow.db         MLflow's SQLite database, in WAL mode (so not on NFS)
    artifacts/        one folder per experiment, one per run in it
    locks/            locks of campaigns
    .prefect/         Prefect's own state
    .init.lock        held while the database is made

``MLFLOW_TRACKING_URI`` overrides both; a team shares a server through it (``http://...``).
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.record import sha256
from trtops.system.masking import masked
from trtops.tracking import schema

_MANAGED = re.compile(r"databricks$|(databricks|databricks-uc|uc|azureml|arn):", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Store:
    """Paths of an embedded store, by the absolute path of its SQLite file. Creating this object makes no files."""

    database: Path

    @property
    def root(self) -> Path:
        """The folder of the whole store."""
        return self.database.parent

    @property
    def artifacts(self) -> Path:
        """The folder of all artifacts."""
        return self.root / "artifacts"

    @property
    def locks(self) -> Path:
        """The folder of locks on its campaigns."""
        return self.root / "locks"

    @property
    def uri(self) -> str:
        """Its address in MLflow."""
        return f"sqlite:///{self.database}"

    def artifacts_of(self, experiment: str) -> Path:
        """The folder of one experiment's artifacts, different for each name."""
        name = schema.encode(experiment)
        # File systems allow 255 bytes for a name.
        if len(name.encode("utf-8")) > 200:
            head = name.encode("utf-8")[:170].decode("utf-8", "ignore")
            name = f"{head}-cut-{sha256(name.encode('utf-8'))[:16]}-"
        return self.artifacts / name


def wait_seconds() -> float:
    """Maximum wait for an unresponsive store, in seconds: ``TRTOPS_TRACKING_WAIT``, or 25."""
    text = os.environ.get("TRTOPS_TRACKING_WAIT") or "25"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise errors.ConfigError(f"TRTOPS_TRACKING_WAIT is {text!r}; expected seconds, 0 or more.")
    return seconds


def default_location() -> str:
    """The default store: ``MLFLOW_TRACKING_URI``, ``TRTOPS_HOME`` or ``mlruns``."""
    return os.environ.get("MLFLOW_TRACKING_URI") or os.environ.get("TRTOPS_HOME") or "mlruns"


def default_root() -> Path:
    """The absolute folder for files of this machine even with a tracking server, such as Prefect's state."""
    where = resolve()
    return where.root if isinstance(where, Store) else Path(os.environ.get("TRTOPS_HOME") or "mlruns").resolve()


def resolve(location: str | Path | None = None) -> Store | str:
    """The embedded store or the server's address of a location, with absolute paths.

    A location is a folder, ``sqlite:///<file>``, or a server's ``http(s)://`` address; None for the default.
    """
    text = os.fspath(location if location is not None else default_location())
    if not isinstance(location, Path) and re.match(_MANAGED, text):
        raise errors.StoreError(
            f"Store {masked(text)!r} is a managed MLflow (Databricks, Azure, SageMaker), which trtops cannot use. "
            "Set MLFLOW_TRACKING_URI to an MLflow server (http://...), or unset it to use ./mlruns."
        )
    scheme = "" if isinstance(location, Path) else (re.match(r"([a-zA-Z][\w+.\-]+):", text) or ["", ""])[1].lower()
    if scheme in ("http", "https"):
        return text.rstrip("/")
    if not scheme:
        database = Path(text).resolve() / "mlflow.db"
    elif text.startswith("sqlite:///") and text.rpartition("/")[2] not in ("", ":memory:"):
        database = Path(text[len("sqlite:///") :])
        database = database.parent.resolve() / database.name
    else:
        raise errors.StoreError(
            f"Store {text!r}: expected a folder, sqlite:///<file>, or the http(s) address of an MLflow server. "
            "For another database, start: mlflow server --backend-store-uri <uri> --artifacts-destination <folder>"
        )
    if set("%?") & set(str(database)):
        raise errors.StoreError(
            f"Store {database.parent}: its path contains '%' or '?', which MLflow changes in addresses. Rename it."
        )
    return Store(database=database)
