"""The connection to an embedded store or a server: calls are retried, and their errors are ours."""

from __future__ import annotations

import http.client
import logging
import os
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtops import errors
from trtops.masking import masked
from trtops.tracking.location import Store, resolve, wait_seconds
from trtops.tracking.mlflow.credentials import use_credentials_file
from trtops.tracking.mlflow.embedded import ensure_store, is_writable, read_only, readable_database
from trtops.tracking.mlflow.installed import library, translated
from trtops.tracking.writer import Scratch

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
"""Seconds between attempts; each pause is twice the one before."""

_PROBE_SECONDS = 5.0
_BATCH_ITEMS = 100
_BATCH_BYTES = 600_000
"""MLflow's server takes 100 params or tags and 1 MB of JSON at a time."""


class Connection:
    """MLflow's client over a location. Safe to use from any thread, and from children made by ``fork``.

    Args:
        location: As :class:`trtops.tracking.mlflow.MlflowTracker` takes it.

    Attributes:
        store: The embedded store; None for a server.
        location: The address that MLflow knows it by.
        shown: The same without a password, for messages.
        writable: Whether anything can be written; if not, what is read is as it was when the connection was made.
        client: MLflow's client; call it through :meth:`call`.
        downloads: A folder for what is fetched from a server.

    Raises:
        StoreError: If the store cannot be used as it is.
    """

    def __init__(self, location: str | Path | Store | None = None) -> None:
        where = location if isinstance(location, Store) else resolve(location)
        self.store = ensure_store(where) if isinstance(where, Store) else None
        self.writable = self.store is None or is_writable(self.store)
        self.location = self.store.uri if self.store else str(where)
        self.shown = masked(self.location)
        use_credentials_file()
        address = self.location if self.store is None else f"sqlite:///{readable_database(self.store)}"
        self.client = self._make_client(address)
        self._pid = os.getpid()
        self._away = threading.Event()
        self.downloads = Scratch()

    def _make_client(self, address: str) -> MlflowClient:
        """MLflow's client, which looks at all tables of a database at once."""
        try:
            client: MlflowClient = library().MlflowClient(tracking_uri=address, registry_uri=address)
        except Exception as exc:
            whose = type(exc).__module__.partition(".")[0]  # SQLAlchemy is imported for databases alone
            if not isinstance(exc, UnicodeDecodeError) and whose not in ("mlflow", "sqlalchemy"):
                raise
            raise errors.StoreError(
                f"{self.shown} cannot be used as an MLflow database: {masked(str(exc)):.300}. Restore it from a backup."
            ) from exc
        return client

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call MLflow; what may pass is retried, and what fails is one of our errors.

        A store that does not answer is waited for (:func:`trtops.tracking.location.wait_seconds`). Once that was in vain,
        calls are made without waiting until one succeeds.

        Raises:
            TrackingUnavailableError: If the store was locked, or the server not there, every time.
            TrackingError: Another one, for whatever else MLflow raises.
        """
        import requests
        from google.protobuf.json_format import ParseError  # type: ignore[import-untyped]
        from mlflow.exceptions import MlflowException

        self._drop_inherited_connections()
        self._raise_if_still_away()
        begin, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                answer = function(*args, **kwargs)
            except (MlflowException, requests.RequestException) as exc:
                error = translated(exc, self.shown)
                if not error.transient:
                    self._raise_if_read_only(error)
                    raise error from None  # MLflow's own message has the address whole, and so the password
                left = begin + wait_seconds() - time.monotonic()
                if self._away.is_set() or left <= 0:
                    self._away.set()
                    raise error from None
            except errors.TrtopsError:
                raise
            except (ParseError, ValueError, LookupError, TypeError, AttributeError) as exc:
                raise errors.StoreError(
                    f"{self.shown} answered something that MLflow cannot read ({type(exc).__name__}: {masked(str(exc)):.300}). "
                    "Is it an MLflow server?"
                ) from exc
            else:
                self._away.clear()
                return answer
            if pause == _FIRST_PAUSE:
                log.warning("%s does not answer; waiting for it for %.0f s (TRTOPS_TRACKING_WAIT).", self.shown, left)
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _raise_if_read_only(self, error: errors.TrackingError) -> None:
        """Say so where SQLite only says that it cannot open the file: in WAL mode it must write even to read."""
        if self.store and "unable to open" in str(error) and not os.access(self.store.root, os.W_OK):
            raise errors.NoRoomError(f"Store {self.store.root} cannot be written: it is read-only.") from error

    def _raise_if_still_away(self) -> None:
        """Find out quickly whether a server that was away is back; one that swallows what is sent would cost minutes."""
        address = urllib.parse.urlsplit(self.location)
        host = address.hostname or ""
        if (
            not self._away.is_set()
            or self.store
            or (urllib.request.getproxies() and not urllib.request.proxy_bypass(host))
        ):
            return
        try:
            if address.scheme == "https":
                socket.create_connection((host, address.port or 443), timeout=_PROBE_SECONDS).close()
                return
            asked = http.client.HTTPConnection(host, address.port, timeout=_PROBE_SECONDS)
            asked.request("GET", f"{address.path}/health")
            asked.getresponse().close()  # whatever it answers: somebody is there
            asked.close()
        except (OSError, http.client.HTTPException) as exc:
            raise errors.TrackingUnavailableError(f"{self.shown} is still away: {exc}.") from None

    def require_writable(self) -> None:
        """Refuse to write where that cannot be.

        Raises:
            NoRoomError: If the store is read-only for this user.
        """
        if self.store is not None and not self.writable:
            raise errors.NoRoomError(read_only(self.store))

    def log_batch(
        self,
        run_id: str,
        *,
        metrics: Mapping[str, tuple[float, int]] | None = None,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Log names and values as MLflow takes them; metrics as value and timestamp in milliseconds."""
        from mlflow.entities import Metric, Param, RunTag

        # Tags first: they hold the rest of whatever is cut in params and metrics, which no reader must find without it.
        for tag_batch in _request_batches(tags or {}):
            self.call(self.client.log_batch, run_id, tags=[RunTag(k, v) for k, v in tag_batch])
        for param_batch in _request_batches(params or {}):
            self.call(self.client.log_batch, run_id, params=[Param(k, v) for k, v in param_batch])
        if metrics:
            self.call(self.client.log_batch, run_id, metrics=[Metric(k, v, t, 0) for k, (v, t) in metrics.items()])

    def end(self, run_id: str, status: str, at: float | None = None) -> None:
        """Set how a run ended, in MLflow's terms, and when, in seconds since the epoch; now unless given."""
        self.call(self.client.set_terminated, run_id, status, None if at is None else round(1000 * at))

    def remove_artifact(self, run_id: str, path: str) -> None:
        """Remove an artifact of a run from a server, whose client has no public call for it."""
        repository: Any = self.client._tracking_client._get_artifact_repo(run_id)
        repository.delete_artifacts(path)

    def give_reserve(self) -> None:
        """Free the reserved space on a full disk, where the store is on this machine."""
        if self.store:
            self.store.give_reserve()

    def url(self, experiment_id: str, run_id: str) -> str:
        """A run's page: whole for a server, from the ``#`` on for an embedded store, whose UI may run anywhere."""
        return f"{'' if self.store else self.shown + '/'}#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"

    def _drop_inherited_connections(self) -> None:
        """In a forked child, forget the parent's database connections: SQLite's cannot be shared."""
        if self._pid != os.getpid():
            engine = getattr(self.client._tracking_client.store, "engine", None)
            if engine is not None:
                engine.dispose(close=False)
            self._pid = os.getpid()


def _request_batches(items: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    """Items in groups that fit into one request, each character counted as the six bytes that JSON may need."""
    batch: list[tuple[str, str]] = []
    size = 0
    for key, value in items.items():
        bytes_ = 6 * (len(key) + len(value)) + 32
        if batch and (len(batch) == _BATCH_ITEMS or size + bytes_ > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((key, value))
        size += bytes_
    if batch:
        yield batch
