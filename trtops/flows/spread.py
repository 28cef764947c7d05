"""Iterations of a campaign as Prefect tasks: on threads of this process, or on the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from prefect.futures import PrefectFuture
from prefect.task_runners import ThreadPoolTaskRunner

from trtops.flows.cluster import dask_runner, require_memory
from trtops.flows.slots import campaign_slot
from trtops.flows.tasks import tracker, trtops_task
from trtops.ops.campaign.config import Campaign
from trtops.ops.campaign.debug_build import Submit
from trtops.ops.campaign.iteration import IterationResult, iterate
from trtops.ops.campaign.once import iterate_once

T = TypeVar("T")


@trtops_task(name="iteration")
def make_iteration(campaign: Campaign, number: int) -> IterationResult:
    """One iteration, on a GPU of its own if it needs one."""
    with campaign_slot(campaign) as held:
        return iterate(held, number, tracker=tracker())


@trtops_task(name="iteration")
def make_iteration_once(campaign: Campaign, number: int) -> IterationResult:
    """The same where a task may run again though it had run: Dask does so when it loses the worker that has the answer."""
    with campaign_slot(campaign) as held:
        return iterate_once(held, number, tracker=tracker())


@contextmanager
def spread(parallel: int, dask: str | None = None) -> Iterator[Submit]:
    """Where iterations are made for the time of a block.

    Args:
        parallel: Threads, each with a warm child process to build in.
        dask: Address of a Dask scheduler whose workers make the iterations instead. All must reach the model's path, the
            flow's Prefect server, whose address they are told, and the memory (``MLFLOW_TRACKING_URI``).

    Raises:
        BackendUnavailableError: If Dask is asked for and prefect-dask is not installed.
        ConfigError: If no scheduler answers there, or a worker of it does not reach what it must; the latter is known of
            the memory when the first iteration is asked for.
    """
    task = make_iteration if dask is None else make_iteration_once
    threads = ThreadPoolTaskRunner[Any](max_workers=parallel)
    place: AbstractContextManager[Any] = threads if dask is None else dask_runner(dask)
    checked: set[str] = set()
    with place as runner:

        def submit(campaign: Campaign, number: int) -> Future[IterationResult]:
            if dask is not None and campaign.run_id not in checked:
                require_memory(runner.client, campaign.run_id)
                checked.add(campaign.run_id)
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
