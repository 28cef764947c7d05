"""Dask workers, which must use the flow's Prefect server and its tracking store."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import TaskRunner

from trtops import errors
from trtops.flows.flow_of import open_tracker
from trtops.system.masking import masked


@contextmanager
def dask_runner(address: str) -> Iterator[TaskRunner[Any]]:
    """The Dask cluster of a scheduler, for the time of a block. Its workers use the Prefect server of the flow.

    Raises:
        BackendUnavailableError: If prefect-dask is not installed.
        ConfigError: If no scheduler answers there, or it has no workers.
    """
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as exc:
        raise errors.BackendUnavailableError("Dask needs prefect-dask. Install it: pip install 'trtops[dask]'") from exc
    # Without an address, each worker would start a server of its own: slow, left behind, and ignorant of this flow run.
    with get_client(sync_client=True) as client:
        url = PREFECT_API_URL.value() or str(client.api_url)
    with temporary_settings({PREFECT_API_URL: url}), DaskTaskRunner(address=address) as runner:
        try:
            runner.client.wait_for_workers(1, timeout=300)
        except (OSError, ValueError) as exc:
            raise errors.ConfigError(
                f"Dask scheduler {address!r}: {exc}. Start one by `dask scheduler`, and workers by "
                "`dask worker <address>`."
            ) from exc
        yield runner


def check_workers(client: Any, run_id: str) -> None:
    """Make sure that all workers of a Dask client reach the flow's Prefect server, and the store that has a run.

    Raises:
        ConfigError: If one does not; the message names it and the reason.
    """
    answers = client.run(worker_problem, str(PREFECT_API_URL.value()), run_id, on_error="return")
    listed = "; ".join(f"{worker}: {masked(str(problem))}" for worker, problem in sorted(answers.items()) if problem)
    if listed:
        raise errors.ConfigError(
            f"Dask workers cannot do the work of this flow: {listed}. Start them in this environment, with the "
            "MLFLOW_TRACKING_URI or TRTOPS_HOME of this flow, and set PREFECT_API_URL for this flow to an address that "
            "they reach (trtops/team/servers.md)."
        )


def worker_problem(url: str, run_id: str) -> str:
    """Why this process cannot work for a flow with a Prefect server and a run; empty if it can."""
    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=30).close()
    except urllib.error.HTTPError:
        pass  # it answers; the flow itself reports a wrong password
    except (OSError, ValueError) as exc:
        return f"it does not reach the Prefect server {url}: {exc}"
    tracker = open_tracker()
    try:
        tracker.info(run_id)
    except errors.TrackingError as exc:
        return f"its runs go to {tracker.shown}, not to the store of this flow ({exc})"
    return ""
