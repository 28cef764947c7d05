"""What the flows share: how a flow and a task are declared here, and what is worth a retry."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import prefect.context
from prefect import Flow, Task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import ParameterTypeError
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from trtops import errors
from trtops.errors import TrtopsError
from trtops.flows.home import ensure_prefect_home
from trtops.masking import mask_log_records, masked, masked_json
from trtops.ops.result import OpResult
from trtops.tracking import schema
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.store import default_tracker, existing_tracker, reap

mask_log_records()  # Prefect sends them to its server

P = ParamSpec("P")
R = TypeVar("R")


class VerdictError(Exception):
    """Ends a flow run as failed whose result is not good.

    Attributes:
        result: The result, which is whole.
    """

    def __init__(self, result: OpResult) -> None:
        super().__init__(result.headline)
        self.result = result


class CalledFlow(Flow[P, R]):
    """A flow that costs little when it is called as a plain function.

    Called in a process, a synchronous flow of Prefect 3.8 ends by joining a heartbeat thread that sleeps for a second
    at a time, so such calls go without heartbeats. A worker does not start flows by calling them: deployed runs keep
    their heartbeats, by which a server finds runs whose process died.
    """

    def serialize_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """The parameters as Prefect keeps them with the run of a flow that is called here; the run itself has them whole."""
        kept: dict[str, Any] = masked_json(super().serialize_parameters(parameters))
        return kept

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the flow in this process and return its result.

        Raises:
            ConfigError: If a parameter does not fit; the flow run is marked failed with the same message.
        """
        if prefect.context.FlowRunContext.get() is None:
            ensure_prefect_home()
        try:
            with temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                return super().__call__(*args, **kwargs)
        except VerdictError as bad:
            return bad.result  # a bad engine is a result like others
        except ParameterTypeError as exc:
            raise errors.ConfigError(f"{self.name}: {exc}") from None


def trtops_flow(
    *, name: str, run_name: Callable[[], str] | str | None = None
) -> Callable[[Callable[P, R]], CalledFlow[P, R]]:
    """Declare a flow: parameters validated, results never persisted (Prefect would pickle them)."""

    def declare(function: Callable[P, R]) -> CalledFlow[P, R]:
        return CalledFlow(
            function,
            name=name,
            flow_run_name=run_name or told_apart,
            validate_parameters=True,
            persist_result=False,
            on_crashed=[close_runs],
            on_cancellation=[close_runs],
        )

    return declare


_TELLING = ("model", "models", "folder", "actual", "golden", "campaign", "run_id", "proof_run", "bad", "runs", "resume",
            "experiment", "precision", "precisions", "side", "backend")  # fmt: skip
"""Parameters that tell runs of a flow apart, in the order in which a name has them."""


def told_apart() -> str:
    """The name of a flow run: what it works on and in which precision. Prefect calls it while the run begins."""
    context = prefect.context.FlowRunContext.get()
    parameters = {} if context is None else context.parameters or {}
    build = getattr(parameters.get("config"), "build", None)
    words = {name: getattr(build, name, None) for name in ("precision", "backend")} | _without_none(parameters)
    return masked(" ".join(word for name in _TELLING if (word := _name_of(words.get(name)))))[:200] or "run"


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, ())}


def _name_of(value: object) -> str:
    """A parameter in a name: of a path its file, of a run's id its first digits."""
    if isinstance(value, (list, tuple)):
        shown = [_name_of(each) for each in value]
        return f"{', '.join(shown[:2])}{f' and {len(shown) - 2} more' if len(shown) > 2 else ''}"
    text = "" if value is None else str(value)
    if isinstance(value, Path) or text.endswith((".onnx", ".ort", ".plan", ".engine", ".json", ".npz")):
        return Path(text).stem
    return text.removeprefix("run:")[:8] if re.fullmatch("(run:)?[0-9a-f]{8,}", text) else text


def close_runs(flow: object, flow_run: Any, state: Any) -> None:
    """Close the MLflow runs that a flow run left open. Prefect calls it, by these names, when one crashed or was cancelled."""
    tracker = default_tracker()
    for run in tracker.find(tags={schema.Tag.PREFECT_FLOW_RUN: str(flow_run.id)}, status="running"):
        tracker.close(run.id, f"Prefect flow run {flow_run.name!r} ended as {state.name}")


def tracker(*, existing: bool = False) -> OfflineTracker:
    """The tracker that flows log to; runs that dead processes left open on this machine are closed first, once per process.

    Args:
        existing: Whether the flow reads what was kept before, so that a store which is missing is an error.
    """
    opened = existing_tracker() if existing else default_tracker()
    if opened not in _reaped:
        with suppress(errors.TrackingUnavailableError):  # what is done now is kept; the dead can wait
            reap(opened)
            _reaped.add(opened)
    return opened


_reaped: set[OfflineTracker] = set()


def trtops_task(*, name: str, run_name: str | None = None, retries: int = 3) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Declare a task of one op call: retried if infrastructure was lost, never for an error of ours, never cached.

    What is built once is found again by the op itself, in the store, by content; Prefect's own cache would key on
    paths and pickle results.
    """

    def declare(function: Callable[P, R]) -> Task[P, R]:
        return Task(
            function,
            name=name,
            task_run_name=run_name,
            retries=retries,
            retry_delay_seconds=[1.0, 5.0, 15.0][:retries],
            retry_condition_fn=worth_a_retry,
            persist_result=False,
            cache_policy=NO_CACHE,
        )

    return declare


def worth_a_retry(task: Task[..., Any], task_run: object, state: Any) -> bool:
    """Whether a failed task may be tried again: errors of ours only if they say so, others if they are about the net."""
    error = state.result(raise_on_failure=False)
    if isinstance(error, TrtopsError):
        return error.transient
    return isinstance(error, (ConnectionError, TimeoutError))


def flow_tags() -> dict[str, str]:
    """Tags that lead from an MLflow run to the Prefect flow run this code runs in; none outside of one."""
    context = prefect.context.FlowRunContext.get()
    if context is None or context.flow_run is None:
        return {}
    return {schema.Tag.PREFECT_FLOW_RUN: str(context.flow_run.id)}
