"""Dask workers, and what they must have in common with the flow that sends them work: its Prefect server and its memory."""

from __future__ import annotations

import ipaddress
import logging
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import TaskRunner

from trtops import errors
from trtops.flows.tasks import tracker
from trtops.masking import masked
from trtops.tracking import owner

log = logging.getLogger(__name__)

_NO_WORKER_SECONDS = 300
_ANSWER_SECONDS = 30.0


@contextmanager
def dask_runner(address: str) -> Iterator[TaskRunner[Any]]:
    """A Dask cluster for the time of a block; its workers use the flow's Prefect server, whatever they were started with.

    Args:
        address: Of its scheduler.

    Raises:
        BackendUnavailableError: If prefect-dask is not installed.
        ConfigError: If no scheduler answers there, it has no workers, or one does not reach the flow's Prefect server.
    """
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as exc:
        raise errors.BackendUnavailableError("Dask needs prefect-dask. Install it: pip install 'trtops[dask]'") from exc
    with DaskTaskRunner(address=address) as runner:
        try:
            client = runner.client  # it connects when it is first asked for
            _wait_for_workers(client, address)
        except (OSError, ValueError) as exc:
            raise errors.ConfigError(
                f"Dask scheduler {address!r}: {exc}. Start one by `dask scheduler`, and workers by `dask worker <address>`."
            ) from exc
        with _shared_server(client):
            yield runner


def require_memory(client: Any, run_id: str) -> None:
    """Make sure that all workers keep their runs where a campaign's own run is.

    Args:
        client: Dask's, as the runner has it.
        run_id: The campaign's run.

    Raises:
        ConfigError: If one does not; the message says where it keeps them.
    """
    without = {worker: where for worker, where in _ask_all(client, _other_memory, run_id).items() if where}
    if without:
        raise errors.ConfigError(
            f"Dask workers keep their runs elsewhere than this flow: {_listed(without)}. Start them with the flow's "
            "MLFLOW_TRACKING_URI, or on its machine with its TRTOPS_HOME. Workers of other machines need an MLflow server."
        )


def _wait_for_workers(client: Any, address: str) -> None:
    if not client.scheduler_info()["workers"]:
        log.warning("Dask scheduler %s has no workers yet; waiting for one (dask worker %s).", address, address)
    try:
        client.wait_for_workers(1, timeout=_NO_WORKER_SECONDS)
    except TimeoutError as exc:
        raise errors.ConfigError(
            f"Dask scheduler {address!r} had no workers for {_NO_WORKER_SECONDS} s. Start some: dask worker {address}"
        ) from exc


def _shared_server(client: Any) -> AbstractContextManager[Any]:
    """The flow's Prefect server for its workers too: its settings go with every task.

    Without one to go to, each worker would start a server of its own: that takes as long as several builds, would outlive
    a worker that is killed, and knows nothing of this flow run.

    Raises:
        ConfigError: If a worker does not reach it.
    """
    boots = _ask_all(client, boot_id)
    elsewhere = {worker: boot for worker, boot in boots.items() if boot != boot_id()}
    url = PREFECT_API_URL.value()
    if url is None and elsewhere:
        raise errors.ConfigError(
            f"Dask workers are on other machines ({', '.join(sorted(elsewhere))}), from where the Prefect server that this "
            "flow starts for itself is not reached. Start one that they reach (trtops/team/servers.md), and set "
            "PREFECT_API_URL to it for this flow; the workers take it from there."
        )
    if url is None:
        return temporary_settings({PREFECT_API_URL: _own_server()})
    if elsewhere and _is_loopback(url):
        raise errors.ConfigError(
            f"PREFECT_API_URL is {masked(url)}, which is another machine for each of the Dask workers "
            f"{', '.join(sorted(elsewhere))}. Set it to an address that they reach too."
        )
    without = {worker: why for worker, why in _ask_all(client, _why_unreached, url).items() if why}
    if without:
        raise errors.ConfigError(
            f"Dask workers do not reach the Prefect server of this flow, {masked(url)}: {_listed(without)}. Set "
            "PREFECT_API_URL to an address that they reach too."
        )
    return nullcontext()


def _ask_all(client: Any, function: Callable[..., Any], *arguments: Any) -> Mapping[str, Any]:
    """What each worker says, by its address.

    Raises:
        ConfigError: If one cannot be asked.
    """
    answers: dict[str, Any] = client.run(function, *arguments, on_error="return")
    failed = {worker: repr(said) for worker, said in answers.items() if isinstance(said, BaseException)}
    if failed:
        raise errors.ConfigError(
            f"Dask workers cannot do the work of this flow: {_listed(failed)}. Start them in this environment, or in one "
            "with the same releases and this checkout."
        )
    return answers


def _listed(said: Mapping[str, str]) -> str:
    return "; ".join(f"{worker}: {masked(text)}" for worker, text in sorted(said.items()))


def boot_id() -> str:
    """What processes of one machine have in common."""
    return owner.current().boot


def _why_unreached(url: str) -> str:
    """Why a server cannot be reached from here; empty if it can be."""
    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=_ANSWER_SECONDS).close()
    except urllib.error.HTTPError:
        return ""  # whom it lets in is said by the flow itself
    except (OSError, ValueError) as exc:
        return str(exc)
    return ""


def _other_memory(run_id: str) -> str:
    """Where runs are kept here, if not where a run is; empty if there."""
    found = tracker()
    try:
        found.info(run_id)
    except errors.RunNotFoundError:
        return found.shown
    except errors.TrackingError as exc:
        return f"{found.shown} ({exc})"
    return ""


def _is_loopback(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _own_server() -> str:
    """Address of the server that this process has started for its flows."""
    with get_client(sync_client=True) as client:
        return str(client.api_url)
