"""Dask workers, which must use the flow's Prefect server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import TaskRunner

from trtops import errors


@contextmanager
def dask_runner(address: str) -> Iterator[TaskRunner[Any]]:
    """The Dask cluster of a scheduler, for the time of a block. Its workers use the Prefect server of the flow.

    Raises BackendUnavailableError if prefect-dask is not installed; ConfigError if no scheduler answers there, or it
    has no workers.
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
