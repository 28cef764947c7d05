"""Iterations of a campaign as Prefect tasks: on threads of this process, or on the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from prefect.client.orchestration import get_client
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.slots import campaign_slot
from flows.tasks import tracker, trtops_task
from trtops import errors
from trtops.ops.campaign.config import Campaign
from trtops.ops.campaign.debug_build import Submit
from trtops.ops.campaign.iteration import IterationResult, iterate
from trtops.ops.campaign.once import iterate_once
from trtops.tracking import owner

T = TypeVar("T")


@trtops_task(name="iteration", run_name="iteration {number}")
def make_iteration(campaign: Campaign, number: int) -> IterationResult:
    """One iteration, on a GPU of its own if it needs one."""
    with campaign_slot(campaign) as held:
        return iterate(held, number, tracker=tracker())


@trtops_task(name="iteration", run_name="iteration {number}")
def make_iteration_once(campaign: Campaign, number: int) -> IterationResult:
    """The same where a task may run again though it had run: Dask does so when it loses the worker that has the answer."""
    with campaign_slot(campaign) as held:
        return iterate_once(held, number, tracker=tracker())


@contextmanager
def spread(parallel: int, dask: str | None = None) -> Iterator[Submit]:
    """Where iterations are made for the time of a block.

    Args:
        parallel: Threads, each with a warm child process to build in.
        dask: Address of a Dask scheduler whose workers make the iterations instead. All must reach the model's path and
            the memory (``MLFLOW_TRACKING_URI``).

    Raises:
        BackendUnavailableError: If Dask is asked for and prefect-dask is not installed.
        ConfigError: If no scheduler answers there.
    """
    task = make_iteration if dask is None else make_iteration_once
    place: AbstractContextManager[TaskRunner[Any]]
    place = ThreadPoolTaskRunner(max_workers=parallel) if dask is None else _dask_runner(dask)
    with place as runner:

        def submit(campaign: Campaign, number: int) -> Future[IterationResult]:
            done: Future[IterationResult] = Future()
            future = runner.submit(task, parameters={"campaign": campaign, "number": number})
            future.add_done_callback(lambda finished: hand_over(finished, done))
            return done

        yield submit


def hand_over(finished: PrefectFuture[T], done: Future[T]) -> None:
    """Give the outcome of a task, result or error, to a future that is not Prefect's."""
    try:
        done.set_result(finished.result())
    except BaseException as exc:  # it is raised where the result is waited for
        done.set_exception(exc)


@contextmanager
def _dask_runner(address: str) -> Iterator[TaskRunner[Any]]:
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as exc:
        raise errors.BackendUnavailableError("Dask needs prefect-dask. Install it: pip install 'trtops[dask]'") from exc
    with DaskTaskRunner(address=address) as runner:
        try:
            boots = runner.client.run(_boot_id).values()  # it connects when it is first asked for
        except (OSError, ValueError) as exc:
            raise errors.ConfigError(
                f"Dask scheduler {address!r}: {exc}. Start one by `dask scheduler`, and workers by `dask worker <address>`."
            ) from exc
        # Without a server to go to, each worker would start one of its own, which takes as long as several builds and
        # would outlive a worker that is killed.
        shared = PREFECT_API_URL.value() is None and set(boots) <= {_boot_id()}
        with temporary_settings({PREFECT_API_URL: _own_server()}) if shared else nullcontext():
            yield runner


def _boot_id() -> str:
    """What processes of one machine have in common."""
    return owner.current().boot


def _own_server() -> str:
    """Address of the server that this process has started for its flows."""
    with get_client(sync_client=True) as client:
        return str(client.api_url)
