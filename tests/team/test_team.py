"""A real Prefect server, a real MLflow server and a real worker, as `make up` starts them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flows import deployments
from flows.deployments import read_deployments
from tests import models
from tests.team.conftest import (
    DEPLOY,
    SERVE,
    ApiError,
    RunningTeam,
    deploying,
    eventually,
    running_team,
    what_is_said,
)
from tests.team.gate import Gate
from trtops import errors, team
from trtops.team import processes
from trtops.team.passwords import read_passwords
from trtops.tracking import schema
from trtops.tracking.base import RunInfo


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTeam]:
    folder = tmp_path_factory.mktemp("servers")
    models.conv_net().write(folder)
    with running_team(folder, "sqlite") as running:
        yield running


@pytest.fixture(scope="module")
def served(servers: RunningTeam) -> Iterator[subprocess.Popen[str]]:
    with deploying(servers, SERVE, DEPLOY) as process:
        yield process


def last_deployment() -> str:
    flow, name = deployments._deployment_key(read_deployments()[-1])
    return f"{flow.rpartition('.')[2].replace('_', '-')}/{name}"


@pytest.fixture(scope="module")
def deployed(servers: RunningTeam, served: subprocess.Popen[str]) -> RunningTeam:
    eventually(lambda: servers.has(last_deployment()) or served.poll() is not None)
    # It is served once somebody has asked for its runs; before, its registering would be interrupted.
    eventually(lambda: servers.deployment(last_deployment())["last_polled"] or served.poll() is not None)
    served.send_signal(signal.SIGINT)
    said = what_is_said(served)
    assert "Made the work pool trtops-gpu." in said  # its worker made the other one
    assert f"{len(read_deployments())} deployments are registered" in said
    (silence,) = servers.call("POST", "automations/filter", {})
    assert silence["enabled"] and silence["actions"][0]["state"] == "CRASHED"
    found = servers.deployment("convert/cpu")
    # Serving had paused them when it ended, lest runs pile up while nobody serves.
    assert (found["work_pool_name"], found["paused"]) == ("trtops-cpu", False)
    return servers


def test_all_deployments_can_be_served_from_one_process(servers: RunningTeam, served: subprocess.Popen[str]):
    eventually(lambda: servers.has(last_deployment()) or served.poll() is not None)
    found = servers.deployment("convert/cpu")
    assert (found["work_pool_name"], found["paused"]) == (None, False)

    flow_run = servers.start("convert/cpu", model=str(servers.models / "conv_net.onnx"), precision="fp16")

    servers.wait_for(flow_run, "COMPLETED")


def processes_of(running: RunningTeam) -> list[int]:
    return [pid for started in running.state.services for pid in processes._with_token(started.token)]


def test_everything_is_up_and_says_where_and_since_when(servers: RunningTeam):
    status = team.status(servers.folder)

    assert [service.name for service in status.services] == ["prefect", "mlflow", "worker-cpu"]
    assert status.all_up, status.text()
    assert status.database == "sqlite"
    assert servers.state.mlflow_url in status.text() and "since 20" in status.text()


def test_starting_what_is_up_starts_nothing(servers: RunningTeam):
    before, told = servers.state, []

    team.up(folder=servers.folder, progress=told.append)

    assert servers.state == before
    assert told == ["prefect is up already.", "mlflow is up already.", "worker-cpu is up already."]
    with pytest.raises(errors.ConfigError, match="up with another mlflow_port"):
        team.up(team.TeamConfig(mlflow_port=1), folder=servers.folder)


def test_nobody_gets_in_without_a_password(servers: RunningTeam):
    for url in (f"{servers.state.mlflow_url}/version", f"{servers.state.prefect_url}/api/admin/version"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=60)


def test_passwords_stand_in_no_command_line_and_in_no_log(servers: RunningTeam):
    found = read_passwords(servers.folder.passwords)
    secrets = (found.mlflow_password, found.mlflow_secret_key, found.prefect_auth.partition(":")[2])

    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in processes_of(servers)]
    logs = [file.read_text() for file in servers.folder.root.glob("logs/*")]

    assert len(lines) >= 3 and len(logs) == 3
    assert not [secret for secret in secrets for text in (*lines, *logs) if secret in text]
    worker = next(started for started in servers.state.services if started.name == "worker-cpu")
    environment = Path(f"/proc/{worker.owner.pid}/environ").read_text()
    assert found.mlflow_password not in environment
    for file in (servers.folder.passwords, servers.folder.mlflow / "basic-auth.ini"):
        assert file.stat().st_mode & 0o777 == 0o600


def test_all_listen_on_the_loopback_interface_alone(servers: RunningTeam):
    ports = {servers.state.prefect_port, servers.state.mlflow_port}
    listening = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            host, port = address.split(":")
            if state == "0A" and int(port, 16) in ports:
                listening.add((host, int(port, 16)))

    assert listening == {("0100007F", port) for port in ports}


def test_a_deployment_without_its_model_is_refused_in_words(deployed: RunningTeam):
    with pytest.raises(ApiError, match="'model' is a required property"):
        deployed.start("convert/cpu")
    with pytest.raises(ApiError, match="fp61"):
        deployed.start("convert/cpu", model="x.onnx", precision="fp61")


def test_a_schedule_fires_builds_a_list_on_the_server_that_the_worker_names_and_says_how_many_failed(
    deployed: RunningTeam,
):
    listed = deployed.models / "list.yaml"
    listed.write_text("models:\n  - model: conv_net.onnx\n    experiment: scheduled\n  - model: conv_nett.onnx\n")
    found = deployed.deployment("nightly/cpu")
    schedule = {"schedule": {"interval": 5}, "active": True, "parameters": {"models": str(listed)}}
    made = deployed.call("POST", f"deployments/{found['id']}/schedules", [schedule])
    build = deployed.first_finished("scheduled")
    deployed.call("DELETE", f"deployments/{found['id']}/schedules/{made[0]['id']}")

    flow_run = build.tags[schema.Tag.PREFECT_FLOW_RUN]
    assert deployed.call("GET", f"flow_runs/{flow_run}")["auto_scheduled"] is True
    assert deployed.wait_for(flow_run, "FAILED") == "1 of 2 failed (1 good, 1 error)"
    assert build.verdict == "good"
    assert deployed.tracker().load(build.id).manifest.artifacts  # through the server, whole
    (summary,) = deployed.tracker().find("list", tags={schema.Tag.PREFECT_FLOW_RUN: flow_run})
    assert (summary.verdict, summary.metrics["builds", "good"]) == ("bad", 1)
    page = deployed.tracker().load(summary.id).read_bytes("build_list.md").decode()
    assert f"{listed}:4" in page and "Did you mean 'conv_net.onnx'?" in page
    assert not (deployed.folder.root.parent / "mlflow.db").exists()  # the local store that it once landed in


def processes_killed(servers: RunningTeam, what: str) -> None:
    """Kill the worker's processes of which the command line has some text."""
    token = next(started.token for started in servers.state.services if started.name == "worker-cpu")
    doomed = []
    for pid in processes._with_token(token):
        with suppress(OSError):
            if what in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "):
                os.kill(pid, signal.SIGKILL)
                doomed.append(pid)
    assert doomed, what
    # A killed process is there for a moment longer, and would be taken for a living worker.
    eventually(lambda: not set(doomed) & set(processes._with_token(token)), pause=0.02)


HELD_DATA = """
import os, pathlib, time
import numpy as np
def load_data():
    folder = pathlib.Path(os.environ["TRTOPS_ALLOWED_SCRIPTS"])
    if (folder / "hold").exists():
        (folder / "held").touch()
        while True:
            time.sleep(3600)
    return [dict(image=np.ones((1, 3, 8, 8), np.float32))]
"""


@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.environ.get("TRTOPS_TEST_KILLS") != "1", reason="takes minutes: make test-kills")
def test_a_campaign_whose_worker_was_killed_goes_on_with_another_and_nothing_is_lost_or_twice(deployed: RunningTeam):
    tracker = deployed.tracker()
    script = deployed.models / "data.py"
    script.write_text(HELD_DATA)
    allowed = {"TRTOPS_ALLOWED_SCRIPTS": str(deployed.models)}

    def finished() -> list[RunInfo]:
        return tracker.find("campaign", tags={schema.Tag.KIND: "iteration"}, status="finished")

    def start(gate: Gate | None = None, **parameters: Any) -> str:
        env = allowed if gate is None else {**allowed, "MLFLOW_TRACKING_URI": gate.address}
        return deployed.start("debug-build/cpu", job_variables={"env": env}, **parameters)

    # While it uploads: the second iteration's files are on the server, and its manifest never arrives.
    with Gate(deployed.state.mlflow_url) as gate:
        manifests = itertools.count()
        gate.hold(
            lambda method, path: path.endswith("/artifacts/manifest.json") and method == "PUT" and next(manifests) == 1
        )
        model = str(deployed.models / "conv_net.onnx")
        first = start(gate, model=model, until=4, data=str(script), experiment="campaign")
        deployed.wait_in(first, lambda: gate.held)
        processes_killed(deployed, "prefect.engine")
    assert "-9" in deployed.wait_for(first, "CRASHED")
    (campaign,) = tracker.find("campaign", tags={schema.Tag.KIND: "debug_build"})
    assert (campaign.status, len(finished())) == ("running", 1)

    # In the middle of an iteration: the worker and all that is its, as if its machine had lost power.
    (deployed.models / "hold").touch()
    second = start(resume=campaign.id)
    deployed.wait_in(second, (deployed.models / "held").exists)
    processes_killed(deployed, "")
    (deployed.models / "hold").unlink()
    assert deployed.flow_state(second)[0] == "RUNNING"
    team.up(folder=deployed.folder)
    assert "Its worker ended with it" in deployed.wait_for(second, "CRASHED")

    deployed.wait_for(start(resume=campaign.id), "COMPLETED")

    assert sorted(int(info.tags[schema.Tag.ITERATION]) for info in finished()) == [0, 1, 2, 3]
    assert all(tracker.load(info.id).manifest.artifacts for info in finished())
    lost = tracker.find("campaign", tags={schema.Tag.KIND: "iteration"}, status="killed")
    assert sorted(info.tags[schema.Tag.ITERATION] for info in lost) == ["1", "1"]
    assert tracker.find("campaign", status="running") == []
    assert tracker.info(campaign.id).status == "finished"
    assert len(tracker.find("campaign", tags={schema.Tag.KIND: "debug_build"})) == 1


def test_down_ends_what_was_started_and_nothing_else(servers: RunningTeam):
    tokens = [started.token for started in servers.state.services]

    told: list[str] = []
    status = team.down(folder=servers.folder, progress=told.append)

    assert told[0] == "Ending worker-cpu ..."  # before the servers that its flow runs need
    assert {service.state for service in status.services} == {"down"}
    assert [pid for token in tokens for pid in processes._with_token(token)] == []
    assert json.loads((servers.folder.root / "team.json").read_text())["services"] == []
