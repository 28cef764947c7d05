"""A flow is derived from its op: parameters, defaults and descriptions, as Prefect's forms show them."""

import importlib
import inspect
import json
import logging
import os
import platform
import re
import socket
import subprocess
import sys
import time
import types
import uuid
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest.mock import Mock

import jinja2
import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State, StateType

from flows.deployments import FILE, QUEUES, automations
from tests import models
from tests.waiting import until
from trtops import errors, flows
from trtops.flows.flow_of import VerdictError, flow_of, run_as_task, state_of, worth_a_retry
from trtops.flows.reaping import is_repeated, settled_state
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.result import OpResult, run_step
from trtops.record import Record, option_fields
from trtops.tracking import owner
from trtops.tracking.base import RunStatus, Tracker
from trtops.tracking.records import RunData
from trtops.tracking.schema import Tag
from trtops.tracking.store import default_tracker
from trtops.verdict import VERDICTS

pytestmark = pytest.mark.usefixtures("store", "prefect_home")


@dataclass(frozen=True, kw_only=True)
class Check(Record):
    """How to check.

    Attributes:
        data: The data to check with.
        limit: The largest error.
    """

    data: str | None = None
    limit: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Config(Record):
    """What to do.

    Attributes:
        data: The data.
        times: How often.
        check: How to check.
    """

    data: str | None = None
    times: int = 2
    check: Check = field(default_factory=Check)


@dataclass(frozen=True, kw_only=True)
class Result(OpResult):
    """What came out."""

    config: Config | None = None
    verdict: str = "good"  # type: ignore[assignment]

    def body(self):  # type: ignore[no-untyped-def]
        return ()


def op(subject: str, config: Config | None = None, *, tracker: Tracker, tags: dict[str, str]) -> Result:
    """Do it.

    Args:
        subject: To what.
        config: Everything else.
    """
    calls.append(tags)
    return Result(config=config, verdict=subject if subject in VERDICTS else "good")


calls: list[dict[str, str]] = []


def test_parameters_are_those_of_op_and_config():
    form = flow_of(op).parameters

    assert list(form.properties) == ["subject", "config", "data", "times", "check_data", "limit"]
    assert form.required == ["subject"]
    assert form.properties["times"]["description"] == "How often (default: 2)."
    assert form.properties["check_data"]["description"] == "The data to check with."
    assert form.properties["times"]["anyOf"][0] == {"type": "integer"}


def test_options_replace_those_of_the_config():
    flow = flow_of(op)

    assert flow("x").config == Config()
    assert flow("x", Config(times=3), check_data="d", limit=0.1).config == Config(
        times=3, check=Check(data="d", limit=0.1)
    )
    assert flow("x", {"times": 4}).config == Config(times=4)
    assert "trtops.prefect_flow_run_id" in calls[-1]
    with pytest.raises(errors.ConfigError, match="times"):
        flow("x", times="often")


def test_other_verdicts_fail_the_run():
    flow = flow_of(op)

    assert flow("bad").verdict == "bad"
    state = flow("bad", return_state=True)
    assert state.is_failed() and state.name == "Bad"
    with get_client(sync_client=True) as client:
        flow_filter = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
        # They are sent in the background.
        until(lambda: [task.state_name for task in client.read_task_runs(flow_run_filter=flow_filter)] == ["Bad"])
        [flow_run] = client.read_flow_runs(flow_run_filter=flow_filter)
    assert flow_run.name == platform.node()  # this op works on nothing that a parameter names
    with pytest.raises(VerdictError):
        state.result()
    for verdict in VERDICTS:
        assert state_of(verdict, "", "").is_failed() == (verdict != "good")


def test_only_lost_infrastructure_is_retried():
    def worth(error: BaseException) -> bool:
        return worth_a_retry(None, None, Mock(result=Mock(return_value=error)))  # type: ignore[arg-type]

    assert worth(errors.TrackingUnavailableError("gone")) and worth(ConnectionError())
    assert not worth(errors.InvalidModelError("x")) and not worth(errors.LogError("full")) and not worth(ValueError())


def test_steps_are_tasks_of_the_flow_run(monkeypatch):
    names: list[str] = []

    def in_steps(subject: str, *, tracker: Tracker) -> None:
        from prefect.context import TaskRunContext

        def note() -> str:
            context = TaskRunContext.get()
            names.append(context.task.name if context is not None else "")
            if len(names) == 1:
                raise ConnectionError(subject)
            return subject

        assert run_step("build", note) == subject
        assert run_as_task("outer", lambda: run_step("inner", note)) == subject

    hurried = types.SimpleNamespace(**vars(time) | {"sleep": lambda seconds: None})
    monkeypatch.setattr("prefect.task_engine.time", hurried)  # not time.sleep: threads of Prefect's wait with it
    flow_of(in_steps, by_steps=True)("x")

    assert names == ["build", "build", "inner"]


@pytest.mark.parametrize("name", flows.__all__)
def test_every_parameter_is_explained(name: str):
    flow = getattr(flows, name)
    for key, part in flow.parameters.properties.items():
        assert part.get("description"), f"{name}: {key}"


def test_every_option_of_convert_is_a_parameter():
    names = {option.metadata.get("keyword", option.name) for option in option_fields(ConvertConfig)}
    assert names <= set(flows.convert.parameters.properties)
    for flow, unused in (
        (flows.gate, ("tolerances", "plots", "warm_up")),
        (flows.compare, ("golden_outputs", "plots")),
    ):
        assert not set(unused) & set(flow.parameters.properties)
    until = flows.debug_build.parameters.properties["until"]["anyOf"]
    assert until[1]["enum"] == ["good", "bad", "decided"]


def test_deployments_name_flows_and_their_parameters():
    listed = yaml.safe_load(FILE.read_text())["deployments"]
    for deployment in listed:
        module, _, name = deployment["entrypoint"].rpartition(".")
        flow = getattr(importlib.import_module(module), name)
        parameters = deployment.get("parameters", {})
        assert set(parameters) <= set(inspect.signature(flow.fn).parameters)
        assert not {"precision", "config"} & set(parameters)  # they would hide what the form asks for
        assert "env" not in deployment["work_pool"].get("job_variables", {})
        # Two deployments of one flow for one pool need two names.
        pool, flow_name = deployment["work_pool"]["name"].removeprefix("trtops-"), flow.name
        assert deployment["name"] in (f"{flow_name}-{pool}", "gate-releases") and deployment["tags"] == ["trtops", pool]
        # What waits must not occupy a worker, as limits with ENQUEUE do; what is due goes first.
        assert deployment.get("concurrency_limit", {}).get("collision_strategy") in (None, "CANCEL_NEW")
        queue = deployment["work_pool"]["work_queue_name"]
        assert queue == "scheduled" if deployment.get("schedules") else queue in ("interactive", "bulk")
    assert len({(entry["entrypoint"], entry["name"]) for entry in listed}) == len(listed)
    assert list(QUEUES.items()) == [("scheduled", None), ("interactive", None), ("bulk", 1)]


def test_flows_folder_shows_each_flow_and_its_deployments():
    texts = {}
    for path in FILE.parent.glob("flows/*.py"):
        module = importlib.import_module(f"flows.{path.stem}")
        text = " ".join((module.__doc__ or "").split())
        for name in getattr(module, "__all__", ()):
            texts[f"trtops.flows.{name}"] = text
            assert getattr(module, name) is getattr(flows, name)
        for source in re.findall(r" (\w+/\S+\.py)", text):
            assert (FILE.parent / "trtops" / source).is_file()

    assert sorted(texts) == sorted(f"trtops.flows.{name}" for name in flows.__all__)
    for deployment in yaml.safe_load(FILE.read_text())["deployments"]:
        when = "on demand"
        for schedule in deployment.get("schedules", ()):
            when = f"cron {schedule['cron']}" if "cron" in schedule else f"every {schedule['interval']} s"
            when += "" if schedule.get("active", True) else ", off"
        parameters = json.dumps(deployment.get("parameters", {}), separators=("; ", ": "))
        defaults = re.sub('["{}]', "", parameters).replace("txt; ", "txt, ")
        assert f"{deployment['name']} {when} {defaults}".strip() in texts[deployment["entrypoint"]]


def test_automations_call_webhook_and_deployments():
    webhook = uuid.uuid4()
    ids = {name: uuid.uuid4() for name in ("reap/reap-cpu", "gate/gate-cpu", "gate/gate-gpu")}
    shipped = {
        automation.name.removeprefix("trtops: "): automation for automation in automations(webhook, ids.__getitem__)
    }
    alone = automations(None, ids.__getitem__)

    assert list(shipped) == [
        "flow runs without heartbeats", "crashed flow run", "bad night", "failed audit", "refused gate",
        "silent worker", "denied tactic", "denied tactic of TensorRT",
    ]  # fmt: skip
    names = ("flow runs without heartbeats", "crashed flow run", "denied tactic", "denied tactic of TensorRT")
    silent, crashed, *denied = (shipped.pop(name) for name in names)
    assert alone == [silent, crashed, *denied]
    for automation, deployment in zip((crashed, *denied), ids.values()):
        [action] = automation.actions
        assert action.deployment_id == deployment
        parameters = inspect.signature(flows.gate if automation in denied else flows.reap).parameters
        assert set(action.parameters or ()) <= parameters.keys()
    del ids["gate/gate-gpu"]  # without a GPU
    assert automations(None, ids.get) == [silent, crashed, denied[0]]
    for automation in shipped.values():
        [action] = automation.actions
        assert action.block_document_id == webhook
        text = jinja2.Template(action.payload.replace("|ui_url", ".url")).render(
            automation={"name": automation.name},
            flow_run={"state": {"name": 'Bad: "a"', "message": "b\n"}, "url": "u"},
            work_pool={"name": "pool"},
        )
        assert automation.name in json.loads(text)["text"]


ENDED_BY = {
    ("CRASHED", "finished", "bad"): "Bad: why",
    ("CRASHED", "finished", "good"): "Good: why",
    ("CRASHED", "finished", ""): None,
    ("CRASHED", "running", ""): None,  # on another machine, or about to end
    ("CRASHED", "killed", ""): None,
    ("RUNNING", "finished", "good"): "Good: why",
    ("RUNNING", "killed", ""): "Crashed",
}
"""The state of a flow run whose process is gone, by state, status and verdict of its first run."""


@pytest.mark.parametrize("recorded", ENDED_BY)
@pytest.mark.parametrize("alive", [False, True])
def test_flow_run_is_settled_by_first_run(recorded: tuple[StateType, RunStatus, str], alive: bool):
    kind, status, verdict = recorded
    run_owner = owner.current() if alive else replace(owner.current(), started=1)
    tags = {Tag.VERDICT: verdict, Tag.HEADLINE: "why", Tag.OWNER: run_owner.text()}
    data = RunData(experiment="e", name="n", parent=None, start_time=0.0, tags=tags, status=status)
    later = replace(data, parent="0", status="finished", tags=tags | {Tag.VERDICT: "bad"})
    flow_run = FlowRun(flow_id=uuid.uuid4(), state=State(type=kind))

    settled = settled_state(flow_run, [later.info_as("1"), data.info_as("0")])

    expected = None if alive and kind == "RUNNING" else ENDED_BY[recorded]
    assert (None if settled is None else settled.name) == expected
    if expected and expected != "Crashed":
        assert settled is not None and settled.is_completed() == (verdict == "good")
    if kind == "CRASHED":  # a flow run that resumed a campaign has iterations only
        assert settled_state(flow_run, [later.info_as("1")]) is None


def test_flow_run_that_no_process_started_is_repeated():
    current_time = datetime.now(timezone.utc)
    for minutes, repeated in ((1, False), (11, True)):
        pending = State(type="PENDING", timestamp=current_time - timedelta(minutes=minutes))
        settled = settled_state(FlowRun(flow_id=uuid.uuid4(), state=pending), [])
        assert (settled is not None and settled.is_scheduled()) == repeated


def test_flow_without_a_server_runs_its_op(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.server.api import server
    from prefect.settings import PREFECT_API_URL, temporary_settings

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a server is started")

    monkeypatch.setattr(server.SubprocessASGIServer, "start", refuse)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    model = models.conv_net().fixed().write(tmp_path)
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        result = flows.convert(model, precision="fp32", iterations=1, latency_runs=0, plots="never")
        with pytest.raises(errors.ConfigError, match="precision"):
            flows.convert(model, precision="fp17")
        flows.reap()

    info = default_tracker().info(result.run_id)
    assert info.verdict == result.verdict == "good" and Tag.PREFECT_FLOW_RUN not in info.tags


def test_crashed_flow_run_of_a_deployment_starts_three_times():
    current_time = datetime.now(timezone.utc)

    def repeated(starts: int, kind: StateType = StateType.CRASHED, hours: int = 1, deployment: bool = True) -> bool:
        state = State(type=kind, timestamp=current_time - timedelta(hours=hours))
        deployment_id = uuid.uuid4() if deployment else None
        return is_repeated(FlowRun(flow_id=uuid.uuid4(), run_count=starts, deployment_id=deployment_id), state)

    assert [repeated(starts) for starts in range(5)] == [True, True, True, False, False]
    assert not repeated(1, deployment=False)  # called by a process that is gone
    assert not repeated(1, hours=25)
    assert not repeated(1, StateType.FAILED) and not repeated(1, StateType.CANCELLED)


def test_error_of_an_op_is_named_by_the_state():
    def refuse(*, tracker: Tracker) -> OpResult:
        """Refuse a model."""
        raise errors.InvalidModelError("net.onnx: truncated")

    state = flow_of(refuse)(return_state=True)

    assert state.is_failed() and state.name == "Error: net.onnx: truncated"
    with pytest.raises(errors.InvalidModelError, match="truncated"):
        state.result()


def test_expected_errors_have_no_traceback_in_prefect():
    def logged(error: Exception) -> tuple[bool, bool]:
        raised = (type(error), error, None)
        record = logging.getLogRecordFactory()("", logging.ERROR, "", 0, "failed: %r", (error,), raised)
        passed = logging.getLogger("prefect.task_runs").filter(record)
        return bool(passed), bool(record.exc_info or record.exc_text)

    assert logged(errors.InvalidModelError("truncated")) == (True, False)
    assert logged(KeyError("a defect")) == (True, True)
    assert logged(VerdictError(Mock(headline="bad")))[0] is False


def test_missing_server_is_reported(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/api"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    plain["TRTOPS_HOME"] = str(tmp_path)

    for server, message in (
        ({}, "No Prefect server is configured."),
        ({"PREFECT_API_URL": url}, f"server at {url} cannot be used"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "flows.deployments"], env=plain | server, capture_output=True, text=True
        )
        assert done.returncode == 3
        assert message in done.stderr and "make up" in done.stderr
        assert not [line for line in done.stderr.splitlines() if "Traceback" in line]
