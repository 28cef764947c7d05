"""The connection to an embedded store or a server: calls are retried, and their errors are ours."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from trtops import errors
from trtops.system.limits import limited_memory, too_much
from trtops.system.masking import masked
from trtops.tracking.artifact_files import Scratch
from trtops.tracking.location import Store, resolve, wait_seconds
from trtops.tracking.mlflow.embedded import drop_connections_after_fork, ensure_store, store_error
from trtops.tracking.mlflow.installed import library, translated, use_credentials_file

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")

log = logging.getLogger(__name__)

# Seconds between attempts; each pause is twice the one before.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
# Seconds for an answer: of a call, unless the wait is longer, and of one after a call that was not answered.
_SECONDS, _SECONDS_IF_AWAY = 10.0, 5.0
# After a request without an answer, none is sent for this many times as long: a command with many calls must not wait
# for a silent server in each of them.
_PAUSE_AFTER_SILENCE = 12.0
# Bytes per second of the slowest transfer of artifacts that is not given up: 2 Mbit/s.
_SLOWEST_TRANSFER = 250_000


class Connection:
    """MLflow's client over a location. Safe to use from any thread, and from children made by ``fork``.

    ``shown`` is its address without a password, for messages, and ``store`` is None for a server. Call the client
    through :meth:`call`.
    """

    def __init__(self, location: str | Path | Store | None = None) -> None:
        where = location if isinstance(location, Store) else resolve(location)
        self.store = where if isinstance(where, Store) else None
        self.location = self.store.uri if self.store else str(where)
        self.shown = masked(self.location)
        self.downloads = Scratch()
        self._refusal: errors.TrackingError | None = None  # of a store that does not answer
        self._silent_until = 0.0
        try:
            self.client  # noqa: B018  # an invalid location is reported now
        except errors.NoRoomError:  # with a full or read-only disk, each call tries again
            if self.store is None or not self.store.database.exists():
                raise

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's client; importing MLflow takes two seconds."""
        use_credentials_file()
        if self.store is not None:
            ensure_store(self.store)
            drop_connections_after_fork()
        try:
            client: MlflowClient = library().MlflowClient(self.location, self.location)
            if self.store is not None:
                # Every database has MLflow's default experiment, whose artifacts trtops puts under the first root.
                _check_place(self.store, client.get_experiment("0").artifact_location)
        except Exception as exc:
            # SQLAlchemy and Alembic are only imported for databases, so their classes cannot be named here.
            module = type(exc).__module__.partition(".")[0]
            if not isinstance(exc, UnicodeDecodeError) and module not in ("mlflow", "sqlalchemy", "alembic"):
                raise
            text = f"{self.shown} cannot be used as an MLflow database: {masked(str(exc)):.400}"
            if "schema" not in text and module != "alembic":  # of another release, for which MLflow has its own advice
                text += ". Restore it from a backup."
            raise errors.StoreError(text) if self.store is None else store_error(exc, self.store, text) from exc
        return client

    def experiment(self, name: str) -> Any:
        """The experiment of a name, also if it was deleted in MLflow; None without one."""
        return self.call(self.client.get_experiment_by_name, name)

    def call(
        self, function: Callable[..., T], *args: Any, transferred: Callable[[], int] = lambda: 0, **kwargs: Any
    ) -> T:
        """Call MLflow. Transient failures are retried, and other errors are translated.

        A store that does not answer is waited for (:func:`trtops.tracking.location.wait_seconds`). After that, calls
        do not wait until one succeeds, and most are not even sent. A server must have answered after this wait, or
        ``MLFLOW_HTTP_REQUEST_TIMEOUT`` seconds if they are set, and the time that ``transferred()`` bytes take at 2
        Mbit/s.
        """
        import requests
        from google.protobuf.json_format import ParseError  # type: ignore[import-untyped]
        from mlflow.exceptions import MlflowException

        begin, pause = time.monotonic(), _FIRST_PAUSE
        if self._refusal is not None and begin < self._silent_until:
            raise type(self._refusal)(*self._refusal.args)
        while True:
            asked = time.monotonic()
            try:
                answer = self._ask(partial(function, *args, **kwargs), transferred)
            except MemoryError:
                raise errors.StoreError(too_much(f"An answer of {self.shown}")) from None
            except (MlflowException, requests.RequestException) as exc:
                error = translated(exc, self.shown, next((arg for arg in args if isinstance(arg, str)), ""))
                if self.store is not None and type(error) is errors.StoreError:
                    error = store_error(exc, self.store, str(error))
                now = time.monotonic()
                left = 0.0 if self._refusal is not None else begin + wait_seconds() - now
                if not error.transient or left <= 0:
                    self._refusal = error if error.transient else None
                    self._silent_until = now + _PAUSE_AFTER_SILENCE * (now - asked)
                    # MLflow's own message contains the address with its password.
                    raise error from None
            except errors.TrtopsError:
                raise
            # What MLflow's client raises if the address is not that of an MLflow server.
            except (ParseError, ValueError, LookupError, TypeError, AttributeError) as exc:
                raise errors.StoreError(
                    f"{self.shown} answered something that MLflow cannot read ({type(exc).__name__}: "
                    f"{masked(str(exc)):.300}). Is it an MLflow server?"
                ) from exc
            else:
                self._refusal = None
                return answer
            if pause == _FIRST_PAUSE:
                log.warning("%s does not answer; waiting up to %.0f s (TRTOPS_TRACKING_WAIT).", self.shown, left)
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _ask(self, request: Callable[[], T], transferred: Callable[[], int]) -> T:
        """Return the response to a request, or raise requests.Timeout after the time limit of a server."""
        if self.store is not None:
            return request()
        import requests
        from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_TIMEOUT

        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(request())
            except BaseException as exc:
                answer.set_exception(exc)

        # In a thread, since MLflow's limit is for each read: a server that sends a byte now and then never exceeds it.
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
        begin, seconds = time.monotonic(), float(MLFLOW_HTTP_REQUEST_TIMEOUT.get())  # type: ignore[no-untyped-call]
        if not MLFLOW_HTTP_REQUEST_TIMEOUT.is_set():  # type: ignore[no-untyped-call]
            seconds = min(seconds, max(wait_seconds(), _SECONDS))
        if self._refusal is not None:
            seconds = min(seconds, _SECONDS_IF_AWAY)
        with limited_memory():  # MLflow reads a server's answer whole, however long it is
            thread.start()
            while not answer.done():
                left = begin + seconds + transferred() / _SLOWEST_TRANSFER - time.monotonic()
                if left <= 0:
                    raise requests.Timeout(
                        f"its answer was not complete within {time.monotonic() - begin:.0f} s. If the connection is "
                        "slow, set MLFLOW_HTTP_REQUEST_TIMEOUT to more seconds."
                    )
                wait([answer], left)
        return answer.result()

    def get(self, address: str, path: str, **options: Any) -> Any:
        """Send a GET request without a method in MLflow's client; use it through :meth:`call`."""
        from mlflow.utils.credentials import get_default_host_creds
        from mlflow.utils.request_utils import augmented_raise_for_status
        from mlflow.utils.rest_utils import http_request

        credentials = get_default_host_creds(address)  # type: ignore[no-untyped-call]
        answer = http_request(credentials, path, "GET", **options)  # type: ignore[no-untyped-call]
        augmented_raise_for_status(answer)  # type: ignore[no-untyped-call]
        return answer

    def user(self) -> Mapping[str, Any] | None:
        """The user authenticated by the server for these calls; None for an embedded store, or without accounts.

        In MLflow's form, with ``username`` and ``is_admin``.
        """
        with suppress(errors.LogError):  # 404
            if self.store is None:
                user: Mapping[str, Any] = self.call(self._get_json, "/api/2.0/mlflow/users/current")["user"]
                return user
        return None

    def permission(self, username: str, kind: str, key: str) -> str | None:
        """A user's permission on a resource, such as ``EDIT``; None if this release of MLflow does not answer that."""
        parameters = {"username": username, "resource_type": kind, "resource_id": key}
        with suppress(errors.LogError):  # 404
            return str(self.call(self._get_json, "/api/3.0/mlflow/users/permissions/get", parameters)["permission"])
        return None

    def _get_json(self, path: str, parameters: Mapping[str, str] = MappingProxyType({})) -> Any:
        return self.get(self.location, path, params=dict(parameters)).json()

    def log_batch(
        self,
        run_id: str,
        *,
        metrics: Mapping[str, tuple[float, int]] = MappingProxyType({}),
        params: Mapping[str, str] = MappingProxyType({}),
        tags: Mapping[str, str] = MappingProxyType({}),
        of: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Log encoded names and values; metrics as value and timestamp in milliseconds.

        ``of`` are the ``model_id`` of an engine that the metrics are about, and ``dataset_name`` and
        ``dataset_digest`` of their data.
        """
        from mlflow.entities import Metric, Param, RunTag

        self.call(
            self.client.log_batch,
            run_id,
            metrics=[Metric(key, value, timestamp, 0, **of) for key, (value, timestamp) in metrics.items()],
            params=[Param(key, value) for key, value in params.items()],
            tags=[RunTag(key, value) for key, value in tags.items()],
        )

    def end(self, run_id: str, status: str, at: float | None = None) -> None:
        """Set a run's final status, in MLflow's terms, and its end in seconds since the epoch (default: now)."""
        self.call(self.client.set_terminated, run_id, status, None if at is None else round(1000 * at))

    def url(self, experiment_id: str, run_id: str) -> str:
        """A run's page; for an embedded store, with its UI on any host, from the ``#`` on."""
        server = "" if self.store else f"{self.shown}/"
        return f"{server}#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"


def _check_place(store: Store, artifact_location: str) -> None:
    """Reject a moved or copied store: MLflow keeps absolute addresses of artifacts."""
    location = Path(artifact_location or "")
    if not location.is_absolute() or location.parts[-2:] != ("artifacts", "0"):
        return
    former = location.parents[1]
    if former != store.root and not (former.exists() and former.samefile(store.root)):
        raise errors.StoreError(
            f"Store {store.root} was moved or copied: its artifact addresses point to {former}. "
            "Move it back, or make a link to it there."
        )
