"""The connection to an embedded store or a server: calls are retried, and their errors are ours."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtops import errors
from trtops.system.masking import masked
from trtops.tracking.location import Store, resolve, wait_seconds
from trtops.tracking.mlflow.credentials import use_credentials_file
from trtops.tracking.mlflow.embedded import ensure_store, is_writable, read_only_text, readable_database
from trtops.tracking.mlflow.installed import drop_connections_after_fork, library, translated
from trtops.tracking.run import Scratch

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
"""Seconds between attempts; each pause is twice the one before."""

_BATCH_ITEMS = 100
_BATCH_BYTES = 600_000
"""MLflow's server accepts 100 params or tags and 1 MB of JSON at a time."""


class Connection:
    """MLflow's client over a location. Safe to use from any thread, and from children made by ``fork``.

    ``shown`` is its address without a password, for messages, and ``store`` is None for a server. Call the client
    through :meth:`call`.

    Raises:
        StoreError: If the store cannot be used as it is.
        StoreMovedError: If an embedded store was moved or copied.
    """

    def __init__(self, location: str | Path | Store | None = None) -> None:
        where = location if isinstance(location, Store) else resolve(location)
        self.store = ensure_store(where) if isinstance(where, Store) else None
        self._writable = self.store is None or is_writable(self.store)
        self.location = self.store.uri if self.store else str(where)
        self.shown = masked(self.location)
        self.downloads = Scratch()
        self._is_away = False
        use_credentials_file()
        if self.store is not None:
            drop_connections_after_fork()
        address = self.location if self.store is None else f"sqlite:///{readable_database(self.store)}"
        try:
            self.client: MlflowClient = library().MlflowClient(tracking_uri=address, registry_uri=address)
        except Exception as exc:
            module = type(exc).__module__.partition(".")[0]  # SQLAlchemy is only imported for databases
            if not isinstance(exc, UnicodeDecodeError) and module not in ("mlflow", "sqlalchemy"):
                raise
            raise errors.StoreError(
                f"{self.shown} cannot be used as an MLflow database: {masked(str(exc)):.300}. Restore it from a backup."
            ) from exc
        if self.store is not None:
            self._check_place(self.store)

    def _check_place(self, store: Store) -> None:
        """Refuse a store that was moved or copied: MLflow keeps absolute addresses of artifacts.

        Every database has MLflow's default experiment, whose artifacts trtops puts under the first root.
        """
        with suppress(errors.RunNotFoundError):
            place = Path(self.call(self.client.get_experiment, "0").artifact_location or "")
            former = place.parents[1] if place.is_absolute() and place.parts[-2:] == ("artifacts", "0") else store.root
            if former != store.root and not (former.exists() and former.samefile(store.root)):
                raise errors.StoreMovedError(
                    f"Store {store.root} was moved or copied: its artifact addresses point to {former}. "
                    "Move it back, or make a link to it there."
                )

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call MLflow. Failures that may pass are retried, and other errors are translated.

        A store that does not answer is waited for (:func:`trtops.tracking.location.wait_seconds`). After that, calls
        do not wait until one succeeds. MLflow's own retries are off: they would make a run twice if the first answer
        was lost.

        Raises:
            TrackingUnavailableError: If the store was locked, or the server away, every time.
            TrackingError: Another one, for other errors of MLflow.
        """
        import requests
        from google.protobuf.json_format import ParseError  # type: ignore[import-untyped]
        from mlflow.exceptions import MlflowException

        begin, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                answer = function(*args, **kwargs)
            except (MlflowException, requests.RequestException) as exc:
                error = translated(exc, self.shown)
                # SQLite in WAL mode must write even to read, and reports a read-only folder like this.
                if self.store and "unable to open" in str(error) and not os.access(self.store.root, os.W_OK):
                    error = errors.NoRoomError(read_only_text(self.store))
                left = 0.0 if self._is_away else begin + wait_seconds() - time.monotonic()
                if not error.transient or left <= 0:
                    self._is_away = error.transient
                    # MLflow's own message contains the address with its password.
                    raise error from None
            except errors.TrtopsError:
                raise
            except (ParseError, ValueError, LookupError, TypeError, AttributeError) as exc:
                raise errors.StoreError(
                    f"{self.shown} answered something that MLflow cannot read ({type(exc).__name__}: "
                    f"{masked(str(exc)):.300}). Is it an MLflow server?"
                ) from exc
            else:
                self._is_away = False
                return answer
            if pause == _FIRST_PAUSE:
                log.warning("%s does not answer; waiting up to %.0f s (TRTOPS_TRACKING_WAIT).", self.shown, left)
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def require_writable(self) -> None:
        """Refuse to write to a store that is read-only for this user.

        Raises:
            NoRoomError: If it is.
        """
        if self.store is not None and not self._writable:
            raise errors.NoRoomError(read_only_text(self.store))

    def log_batch(
        self,
        run_id: str,
        *,
        metrics: Mapping[str, tuple[float, int]] | None = None,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Log encoded names and values; metrics as value and timestamp in milliseconds."""
        from mlflow.entities import Metric, Param, RunTag

        for tag_batch in _batches(tags or {}):
            self.call(self.client.log_batch, run_id, tags=[RunTag(k, v) for k, v in tag_batch])
        for param_batch in _batches(params or {}):
            self.call(self.client.log_batch, run_id, params=[Param(k, v) for k, v in param_batch])
        if metrics:
            self.call(self.client.log_batch, run_id, metrics=[Metric(k, v, t, 0) for k, (v, t) in metrics.items()])

    def end(self, run_id: str, status: str, at: float | None = None) -> None:
        """Set a run's final status, in MLflow's terms, and its end in seconds since the epoch; now unless given."""
        self.call(self.client.set_terminated, run_id, status, None if at is None else round(1000 * at))

    def url(self, experiment_id: str, run_id: str) -> str:
        """A run's page; for an embedded store, whose UI may run anywhere, from the ``#`` on."""
        server = "" if self.store else f"{self.shown}/"
        return f"{server}#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"


def _batches(items: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    """Items in groups that fit into one request; JSON may need six bytes for each character."""
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
