"""Where runs are kept: the parts of an embedded store, and what a location means.

The embedded store is a folder, ``./mlruns`` unless ``TRTOPS_HOME`` names another::

    mlflow.db         MLflow's SQLite database, in WAL mode (so not on NFS)
    artifacts/        one folder per experiment, one per run in it
    locks/            held while a process works on a campaign
    .prefect/         Prefect's own state
    .init.lock        held while the database is made, upgraded or relocated
    .reserve          space given up when the disk is full, so that a run can still be marked as failed

``MLFLOW_TRACKING_URI`` wins over both; a team shares a server through it (``http://...``).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.record import sha256
from trtops.tracking import schema

_RESERVE_BYTES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Store:
    """An embedded store: names of its parts. Making one touches nothing.

    Attributes:
        database: Absolute path of the SQLite file.
    """

    database: Path

    @property
    def root(self) -> Path:
        """The folder that holds everything."""
        return self.database.parent

    @property
    def artifacts(self) -> Path:
        """The folder of all artifacts."""
        return self.root / "artifacts"

    @property
    def locks(self) -> Path:
        """The folder of locks on what is in the store."""
        return self.root / "locks"

    @property
    def uri(self) -> str:
        """The address that MLflow knows the store by."""
        return f"sqlite:///{self.database}"

    def artifacts_of(self, experiment: str) -> Path:
        """The folder of one experiment's artifacts; other experiments have other ones, whatever their names."""
        name = schema.encode(experiment)
        if len(name.encode("utf-8")) > 200:
            head = name.encode("utf-8")[:170].decode("utf-8", "ignore")
            name = f"{head}-cut-{sha256(name.encode('utf-8'))[:16]}-"
        return self.artifacts / name

    @property
    def _reserve(self) -> Path:
        return self.root / ".reserve"

    def keep_reserve(self) -> None:
        """Reserve some space, unless it is reserved or there is none."""
        if not self._reserve.exists():
            with suppress(OSError), open(self._reserve, "xb") as file:  # a link is not followed
                file.write(os.urandom(_RESERVE_BYTES))

    def give_reserve(self) -> None:
        """Free the reserved space on a full disk."""
        with suppress(OSError):
            self._reserve.unlink(missing_ok=True)


def wait_seconds() -> float:
    """How long a store that does not answer is waited for: ``TRTOPS_TRACKING_WAIT``, or a minute and a half.

    Raises:
        ConfigError: If the variable is no number of seconds.
    """
    text = os.environ.get("TRTOPS_TRACKING_WAIT") or "90"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise errors.ConfigError(f"TRTOPS_TRACKING_WAIT is {text!r}; expected seconds, 0 or more.")
    return seconds


def default_location() -> str:
    """Where runs are kept by default: ``MLFLOW_TRACKING_URI``, ``TRTOPS_HOME`` or ``mlruns``."""
    return os.environ.get("MLFLOW_TRACKING_URI") or os.environ.get("TRTOPS_HOME") or "mlruns"


def default_root() -> Path:
    """The absolute folder of what stays on this machine even if runs go to a server: Prefect's state, the demo's data.

    The embedded store's own folder if that is the default location.
    """
    where = resolve()
    return where.root if isinstance(where, Store) else Path(os.environ.get("TRTOPS_HOME") or "mlruns").resolve()


def resolve(location: str | Path | None = None) -> Store | str:
    """What a location means, with relative paths made absolute now.

    Args:
        location: A folder, ``sqlite:///<file>``, or a server's ``http(s)://`` address; None for the default.

    Returns:
        An embedded store, or a server's address.

    Raises:
        StoreError: If it is none of these.
    """
    text = os.fspath(location if location is not None else default_location())
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
            "Put a server in front of any other database: mlflow server --backend-store-uri <uri> --artifacts-destination <where>."
        )
    if set("%?") & set(str(database)):
        raise errors.StoreError(
            f"Store {database.parent}: its path has a '%' or '?', which MLflow's addresses change. Rename it."
        )
    return Store(database=database)
