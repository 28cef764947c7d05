"""A real Prefect server, a real MLflow server and a real worker, as `make up` starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flows.deployments import read_deployments
from tests import models
from tests.team.conftest import PATIENCE, ApiError, RunningTeam, deploy, eventually, running_team
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
def deployed(servers: RunningTeam) -> RunningTeam:
    said = deploy(servers)
    assert "Made the work pool trtops-gpu." in said  # its worker made the other one
    assert f"{len(read_deployments())} deployments are registered" in said
    (silence,) = servers.call("POST", "automations/filter", {})
    assert silence["enabled"] and silence["actions"][0]["state"] == "CRASHED"
    found = servers.deployment("convert/cpu")
    assert (found["work_pool_name"], found["paused"]) == ("trtops-cpu", False)
    return servers


def test_all_deployments_can_be_served_from_one_process(servers: RunningTeam):
    environment = {**os.environ, **servers.environment, "TRTOPS_HOME": str(servers.folder.root.parent)}
    with subprocess.Popen([sys.executable, "-m", "flows.deployments", "serve"], env=environment) as serving:
        eventually(lambda: servers.has("reduce/cpu"), "the last deployment")
        flow_run = servers.start("convert/cpu", model=str(servers.models / "conv_net.onnx"), precision="fp16")
        servers.wait_for(flow_run, "COMPLETED")
        serving.send_signal(signal.SIGINT)
        assert serving.wait(PATIENCE) == 0

    assert servers.deployment("convert/cpu")["paused"]  # lest runs pile up while nobody serves


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


def killed_while_uploading(servers: RunningTeam, flow_run: str) -> None:
    """Kill a flow run's process when some files of an iteration are on the server and its manifest is not."""

    def uploading() -> bool:
        engines = (servers.folder.mlflow / "artifacts").glob("*/*/artifacts/engine")
        return any(not (engine.parent / "manifest.json").exists() for engine in engines)

    eventually(uploading, "an upload", pause=0.02)
    processes_killed(servers, "prefect.engine")
    message = servers.wait_for(flow_run, "CRASHED")
    assert "-9" in message


def processes_killed(servers: RunningTeam, what: str) -> None:
    """Kill the worker's processes of which the command line has some text."""
    worker = next(started for started in servers.state.services if started.name == "worker-cpu")
    for pid in processes._with_token(worker.token):
        with suppress(OSError):
            if what in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(
    os.environ.get("TRTOPS_TEST_KILLS") != "1",
    reason="takes minutes, and longer than it waits for on a busy machine: make test-kills",
)
def test_a_campaign_whose_worker_was_killed_goes_on_with_another_and_nothing_is_lost_or_twice(deployed: RunningTeam):
    tracker = deployed.tracker()

    def finished() -> list[RunInfo]:
        return tracker.find("campaign", tags={schema.Tag.KIND: "iteration"}, status="finished")

    model = str(deployed.models / "conv_net.onnx")
    assert finished() == []
    killed_while_uploading(deployed, deployed.start("debug-build/cpu", model=model, until=4, experiment="campaign"))
    (campaign,) = tracker.find("campaign", tags={schema.Tag.KIND: "debug_build"})

    deployed.start("debug-build/cpu", resume=campaign.id)
    known = len(finished())
    eventually(lambda: len(finished()) > known, "another iteration")
    processes_killed(deployed, "")  # the worker and all that is its, as if its machine had lost power
    team.up(folder=deployed.folder)
    deployed.wait_for(deployed.start("debug-build/cpu", resume=campaign.id), "COMPLETED")

    assert sorted(int(info.tags[schema.Tag.ITERATION]) for info in finished()) == [0, 1, 2, 3]
    assert all(tracker.load(info.id).manifest.artifacts for info in finished())
    assert tracker.find("campaign", status="running") == []
    assert len(tracker.find("campaign", tags={schema.Tag.KIND: "debug_build"})) == 1


def test_down_ends_what_was_started_and_nothing_else(servers: RunningTeam):
    tokens = [started.token for started in servers.state.services]

    told: list[str] = []
    status = team.down(folder=servers.folder, progress=told.append)

    assert told[0] == "Ending worker-cpu ..."  # before the servers that its flow runs need
    assert {service.state for service in status.services} == {"down"}
    assert [pid for token in tokens for pid in processes._with_token(token)] == []
    assert json.loads((servers.folder.root / "team.json").read_text())["services"] == []
