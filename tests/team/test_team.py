"""A real Prefect server, a real MLflow server and a real worker, as `make up` starts them."""

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil
import pytest
import requests

from flows.deployments import QUEUES
from tests import models
from tests.long_runs import LONG
from tests.team.conftest import RunningTeam, eventually, running_team
from trtops import errors
from trtops.ops.auditing.prune import prune_runs
from trtops.ops.gate.op import gate
from trtops.ops.gate.policy import GateConfig
from trtops.team import access, servers
from trtops.tracking import schema
from trtops.tracking.base import RunInfo, tracked

long = pytest.mark.skipif(
    not LONG, reason="TRTOPS_TEST_LONG=1 runs it"
)  # registering all deployments takes 30 CPU seconds


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, prefect_database: Path) -> Iterator[RunningTeam]:
    folder = tmp_path_factory.mktemp("servers")
    (folder / "team" / "prefect").mkdir(parents=True)
    shutil.copy(prefect_database / "prefect.db", folder / "team" / "prefect")
    models.conv_net().fixed().write(folder)
    with running_team(folder) as started:
        yield started


def deploy(running: RunningTeam) -> str:
    """Register all deployments as `make deploy` does, which finds the team's server; returns what is printed."""
    names = ("PATH", "HOME", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR")
    plain = {name: os.environ[name] for name in names if name in os.environ}
    environment = {**plain, "TRTOPS_HOME": str(running.folder.parent), "MLFLOW_TRACKING_URI": ""}
    command = [sys.executable, "-m", "flows.deployments"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def deployed(running: RunningTeam) -> RunningTeam:
    """The servers with all deployments."""
    text = deploy(running)
    assert "  convert/convert-cpu\n" in text and "All deployments are registered" in text
    assert ("  convert/convert-gpu\n" in text) == access.has_gpu() == ("No GPU here" not in text)
    automations = {automation["name"]: automation for automation in running.call("POST", "automations/filter", {})}
    silence, denied = automations.pop("trtops: flow runs without heartbeats"), automations["trtops: denied tactic"]
    assert denied["actions"][0]["deployment_id"] == running.deployment("gate/gate-cpu")["id"] and len(automations) == 2
    assert silence["enabled"] and silence["actions"][0]["state"] == "CRASHED"
    assert running.deployment("convert/convert-cpu")["work_pool_name"] == "trtops-cpu"
    queues = running.call("POST", "work_pools/trtops-cpu/queues/filter", {})
    assert [(queue["name"], queue["concurrency_limit"]) for queue in queues[:3]] == [*QUEUES.items()]
    return running


def test_running_servers_are_not_started_again(running: RunningTeam):
    status = servers.status(running.folder)
    assert [(service.name, service.state) for service in status] == [
        (n, "up") for n in ("prefect", "mlflow", "worker-cpu")
    ]
    assert running.state.mlflow_url in status[1].text and "since 20" in status[1].text

    before, processes = running.state, [servers.main_process(running.folder, service.name) for service in status]
    servers.up(running.folder)

    assert running.state == before
    assert processes == [servers.main_process(running.folder, service.name) for service in status]
    with pytest.raises(errors.ConfigError, match="up with other settings"):
        servers.up(running.folder, mlflow_port=1)


def test_servers_are_protected(running: RunningTeam):
    for url in (f"{running.state.mlflow_url}/version", f"{running.state.prefect_url}/api/admin/version"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=60)

    state = running.state
    secrets = (state.mlflow_password, state.prefect_password)
    processes = {name: servers.all_processes(running.folder, name) for name in servers._started(running.folder)}
    lines = [" ".join(process.cmdline()) for group in processes.values() for process in group]
    logs = [file.read_text() for file in running.folder.glob("logs/*.log")]
    assert len(lines) >= 3 and len(logs) == 3
    assert not [secret for secret in secrets for text in (*lines, *logs) if secret in text]
    assert state.mlflow_password not in str(processes["worker-cpu"][0].environ())

    ports = {running.state.prefect_port, running.state.mlflow_port}
    addresses = {
        connection.laddr for connection in psutil.net_connections("inet") if connection.status == psutil.CONN_LISTEN
    }
    assert {ip for ip, port in addresses if port in ports} == {"127.0.0.1"}


def test_accounts_are_named_and_their_permissions_respected(running: RunningTeam, monkeypatch: pytest.MonkeyPatch):
    admin = running.tracker()
    alice, server = {"username": "alice", "password": "twelve characters"}, running.state

    def post(path: str, **body: str) -> None:
        login = ("admin", server.mlflow_password)
        requests.post(f"{server.mlflow_url}/api/{path}", json=body, auth=login).raise_for_status()

    post("2.0/mlflow/users/create", **alice)
    with tracked(admin, "nets", "net", kind="build") as run:
        run.log_bytes(b"engine", "engine/engine.ort")
    admin.register("net", run.id, "engine/engine.ort", alias="by_admin")

    monkeypatch.delenv("TRTOPS_CREDENTIALS")
    monkeypatch.delenv("MLFLOW_TRACKING_AUTH")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", alice["username"])
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", alice["password"])
    monkeypatch.setenv("LOGNAME", "mallory")  # the login name of the system
    running.tracker().register("net", run.id, "engine/engine.ort", alias="by_alice")

    accepted = {alias: version.tags[schema.Tag.ACCEPTED_BY] for alias, version in running.tracker().accepted()}
    assert accepted == {"by_admin": "admin", "by_alice": "alice"}

    tracker = running.tracker()
    tracker.check_access("net")
    with pytest.raises(errors.AccessDeniedError, match="the account 'alice' is not an administrator's"):
        prune_runs(tracker=tracker, apply=True)
    denied = {"username": "alice", "permission": "DENY"}
    post("3.0/mlflow/users/permissions/grant", **denied, resource_type="registered_model", resource_id="net")
    model = running.models / "conv_net.onnx"
    with pytest.raises(errors.AccessDeniedError, match="'net' to the account 'alice', which needs the permission READ"):
        gate(model, GateConfig(name="net"), tracker=tracker, experiment="nets")
    assert [info.id for info in tracker.find("nets")] == [run.id]  # nothing is half-written
    experiment = admin._experiment_id("nets")
    post("3.0/mlflow/users/permissions/grant", **denied, resource_type="experiment", resource_id=experiment)
    with pytest.raises(errors.AccessDeniedError, match="'nets' to the account 'alice', which needs"):
        tracker.start("nets", "net", kind="build")


@long
def test_wrong_parameters_of_deployments_are_refused(deployed: RunningTeam):
    for wrong, message in (
        ({}, "'model' is a required property"),
        ({"model": "x.onnx", "precision": "fp61"}, "fp61"),
        ({"model": "x.onnx", "presicion": "fp16"}, "'presicion' was unexpected"),
    ):
        with pytest.raises(LookupError, match=message):
            deployed.start("convert/convert-cpu", **wrong)


@long
def test_schedule_builds_list_on_the_workers_server(deployed: RunningTeam):
    listed = deployed.models / "list.yaml"
    listed.write_text("models:\n  - model: conv_net.onnx\n    experiment: scheduled\n  - model: conv_nett.onnx\n")
    deployment = deployed.deployment("nightly/nightly-cpu")
    # One run in a few seconds. With a short interval, further runs would start before the first one ends.
    interval = {"interval": 60, "anchor_date": (datetime.now(timezone.utc) + timedelta(seconds=3)).isoformat()}
    schedule = {"schedule": interval, "active": True, "parameters": {"models": str(listed)}}
    schedules = deployed.call("POST", f"deployments/{deployment['id']}/schedules", [schedule])
    build = eventually(lambda: next(iter(deployed.tracker().find("scheduled", status="finished")), None))
    deployed.call("DELETE", f"deployments/{deployment['id']}/schedules/{schedules[0]['id']}")

    flow_run = build.tags[schema.Tag.PREFECT_FLOW_RUN]
    assert "conv_nett.onnx matches no file" in deployed.wait_for(flow_run, "FAILED")
    ended = deployed.call("GET", f"flow_runs/{flow_run}")
    assert (ended["auto_scheduled"], ended["work_queue_name"]) == (True, "scheduled")
    assert ended["state"]["name"] == "Bad: 1 of 2 failed (1 good, 1 error): conv_nett"
    assert build.verdict == "good"
    assert deployed.tracker().load(build.id).manifest.artifacts  # through the server, whole
    (summary,) = deployed.tracker().find("list", tags={schema.Tag.PREFECT_FLOW_RUN: flow_run})
    assert (summary.verdict, summary.metrics["builds", "good"]) == ("bad", 1)
    page = deployed.tracker().load(summary.id).read_bytes("report/report.html").decode()
    assert "conv_nett.onnx" in page
    assert not (deployed.folder.parent / "mlflow.db").exists()  # nothing went to a local store


HELD_DATA = """
import os, pathlib, time
import numpy as np
def load_data():
    folder = pathlib.Path(os.environ["TRTOPS_ALLOWED_SCRIPTS"])
    if (folder / "hold").exists():
        (folder / "held").touch()
        while True:
            time.sleep(3600)
    return [dict(image=np.ones((2, 3, 8, 8), np.float32))]
"""


@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.environ.get("TRTOPS_TEST_KILLS") != "1", reason="takes minutes: TRTOPS_TEST_KILLS=1")
def test_campaign_resumes_after_worker_was_killed(deployed: RunningTeam):
    tracker = deployed.tracker()
    script = deployed.models / "data.py"
    script.write_text(HELD_DATA)
    allowed = {"env": {"TRTOPS_ALLOWED_SCRIPTS": str(deployed.models)}}
    hold, held = deployed.models / "hold", deployed.models / "held"

    def finished() -> list[RunInfo]:
        return tracker.find("campaign", tags={schema.Tag.KIND: "iteration"}, status="finished")

    def kill(command: str) -> None:
        """Kill the worker's processes with this text in their command line, in the middle of an iteration."""
        eventually(held.exists)
        running = servers.all_processes(deployed.folder, "worker-cpu")
        doomed = [candidate for candidate in running if command in " ".join(candidate.cmdline())]
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed)
        held.unlink()

    model = str(deployed.models / "conv_net.onnx")
    first = deployed.start(
        "debug-build/debug-build-cpu", allowed, model=model, until=4, data=str(script), experiment="campaign"
    )
    eventually(finished)
    hold.touch()
    kill("prefect.engine")  # the process of the flow run
    assert "-9" in deployed.wait_for(first, "CRASHED")
    [campaign] = tracker.find("campaign", tags={schema.Tag.KIND: "debug_build"})
    second = deployed.start("debug-build/debug-build-cpu", allowed, resume=campaign.id)
    kill("")  # the worker with all of its processes, as if its machine had lost power
    hold.unlink()
    assert deployed.flow_state(second)[0] == "RUNNING"  # the server ends it after ten minutes without heartbeats
    servers.up(deployed.folder)
    deployed.wait_for(deployed.start("reap/reap-cpu"), "COMPLETED")
    assert deployed.flow_state(second)[0] == "CRASHED"

    deployed.wait_for(deployed.start("debug-build/debug-build-cpu", allowed, resume=campaign.id), "COMPLETED")

    assert sorted(int(info.tags[schema.Tag.ITERATION]) for info in finished()) == [0, 1, 2, 3]
    assert all(tracker.load(info.id).manifest.artifacts for info in finished())
    assert tracker.find("campaign", tags={schema.Tag.KIND: "iteration"}, status="killed")
    assert tracker.find("campaign", status="running") == []
    assert tracker.info(campaign.id).status == "finished"


def test_down_ends_everything_it_started(running: RunningTeam):
    names = servers._started(running.folder)

    status = servers.down(running.folder)

    assert {service.state for service in status} == {"down"}
    assert len(names) == 3
    assert [process for name in names for process in servers.all_processes(running.folder, name)] == []
