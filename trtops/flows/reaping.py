"""Flows for tidying servers and store: after processes were killed, and when engines are old."""

import datetime
from collections.abc import Sequence
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.filters import EventFilter, EventNameFilter, EventOccurredFilter, EventResourceFilter
from prefect.states import AwaitingRetry, Crashed, Scheduled

from trtops.flows.flow_of import flow_of, state_of
from trtops.flows.slots import in_flow
from trtops.ops.auditing.prune import prune_runs as prune_runs_op
from trtops.reports.description import without_links
from trtops.tracking import check, owner
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.records import RunInfo
from trtops.tracking.schema import Tag

_PENDING_MINUTES = 10  # after which the process of a flow run has not started, also on a busy machine
_MOST_STARTS = 3  # of a flow run, after which it stays crashed: its model may be what kills the process
_PAUSE_SECONDS = 60  # before a start: a worker that still holds the slot of the former one ends with an error
_SILENT_MINUTES = 10  # more than three times Prefect's default between heartbeats
_REPEATED_HOURS = 24  # after a crash; a flow run that crashed earlier is no longer waited for
_MAX_FLOW_RUNS = 200  # flow runs per call, as Prefect's server allows
_UNSETTLED = FlowRunFilter.model_validate({"state": {"type": {"any_": ["PENDING", "RUNNING", "CRASHED"]}}})


def _reap(*, tracker: OfflineTracker) -> tuple[str, ...]:
    """Upload the spool, close runs of killed processes, and end their flow runs as their MLflow runs ended.

    A flow run of a deployment that ended without a result starts again, with the same parameters, until it has started
    three times. Removes the folders of these processes as well. Returns what was changed, a line each.
    """
    tracker.upload_spool()  # first: a run that went there is running in the store, and its process is gone
    changes = [f"Run {info.id} of a dead process is {info.status}: {info.name}" for info in check.reap(tracker)]
    changes += [f"Removed {path}" for path in check.remove_leftovers(tracker)]
    if not in_flow():
        return tuple(changes)
    with get_client(sync_client=True) as client:
        order = FlowRunSort.EXPECTED_START_TIME_DESC
        for flow_run in client.read_flow_runs(flow_run_filter=_UNSETTLED, sort=order, limit=_MAX_FLOW_RUNS):
            runs = tracker.find(tags={Tag.PREFECT_FLOW_RUN: str(flow_run.id)})
            state = settled_state(flow_run, runs)
            if state is None and not runs and _is_silent(client, flow_run):
                state = Crashed(message=f"Its process sent no heartbeat for {_SILENT_MINUTES} minutes: it is gone.")
            if state is not None:
                client.set_flow_run_state(flow_run.id, state, force=True)
                changes.append(f"Flow run {flow_run.name} is {state.name}")
            if not is_repeated(flow_run, state or flow_run.state):
                continue
            if (starts := _starts_of(client, flow_run)) < _MOST_STARTS:
                message = f"Its process ended without a result. This is start {starts + 1} of {_MOST_STARTS}."
                again = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=_PAUSE_SECONDS)
                # Not by force: Prefect refuses it for a flow run that another process has just scheduled.
                proposal: State[Any] = AwaitingRetry(scheduled_time=again, message=message)
                if client.set_flow_run_state(flow_run.id, proposal).status == "ACCEPT":
                    changes.append(f"Flow run {flow_run.name} starts again")
    if changes:
        create_markdown_artifact(without_links("\n".join(f"- {change}" for change in changes)), key="reap")
    return tuple(changes)


def settled_state(flow_run: FlowRun, runs: Sequence[RunInfo]) -> State[Any] | None:
    """The state of a flow run by its MLflow runs, newest first; None to leave it as it is.

    A flow run ends as the first of its runs, to which the others belong, if all of them have ended; if it started
    again, as the last run of that kind. One that no process started is scheduled again.
    """
    state = flow_run.state
    assert state is not None
    if state.is_pending():
        age = datetime.datetime.now(datetime.timezone.utc) - state.timestamp
        return Scheduled() if age > datetime.timedelta(minutes=_PENDING_MINUTES) else None
    if not runs or any(info.status == "running" for info in runs):
        return None
    first = next(info for info in runs if (info.kind, info.parent) == (runs[-1].kind, runs[-1].parent))
    # On another machine it cannot be seen; a flow run without heartbeats is Crashed after a while.
    if state.is_running() and not owner.is_abandoned(first):
        return None
    if first.status == "finished" and first.verdict and first.parent is None:
        message = f"Its process was killed after run {first.id}."
        return state_of(first.verdict, first.tags.get(Tag.HEADLINE, ""), message)
    return Crashed(message=f"Its process was killed; run {first.id} is {first.status}.") if state.is_running() else None


def _is_silent(client: SyncPrefectClient, flow_run: FlowRun) -> bool:
    """True if a running flow run of a deployment, whose process sends heartbeats, has sent none for a while.

    The automation for flow runs without heartbeats waits for a first one, which a process may not live to send.
    """
    since = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=_SILENT_MINUTES)
    state = flow_run.state
    if state is None or not state.is_running() or flow_run.deployment_id is None or state.timestamp > since:
        return False
    heartbeats = EventFilter(
        event=EventNameFilter(name=["prefect.flow-run.heartbeat"]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{flow_run.id}"]),
        occurred=EventOccurredFilter(since=since),  # type: ignore[arg-type]  # Prefect's own date type is a datetime
    )
    return not client.read_events(heartbeats, limit=1).events


def _starts_of(client: SyncPrefectClient, flow_run: FlowRun) -> int:
    """The number of starts of a flow run, with those whose process died before Prefect counted it as running."""
    crashes = [state for state in client.read_flow_run_states(flow_run.id) if state.is_crashed()]
    return max(flow_run.run_count, len(crashes))


def is_repeated(flow_run: FlowRun, state: State[Any] | None) -> bool:
    """True if a flow run in this state is to start again: a crashed one of a deployment, some times within a day."""
    if state is None or not state.is_crashed() or flow_run.deployment_id is None:
        return False
    age = datetime.datetime.now(datetime.timezone.utc) - state.timestamp
    return flow_run.run_count < _MOST_STARTS and age < datetime.timedelta(hours=_REPEATED_HOURS)


reap = flow_of(_reap, place_of=lambda *_: None, by_steps=True)
prune_runs = flow_of(prune_runs_op, place_of=lambda *_: None)
