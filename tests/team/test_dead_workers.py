"""The work of killed workers is done in the end: PostgreSQL, both servers and four workers, two of them killed."""

import collections
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests import models
from tests.team.conftest import RunningTeam, eventually, running_team
from tests.team.test_team import deploy
from trtops.team import servers
from trtops.tracking import schema
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.spool import default_spool

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.environ.get("TRTOPS_TEST_KILLS") != "1", reason="takes minutes: TRTOPS_TEST_KILLS=1"),
    pytest.mark.skipif(shutil.which("initdb") is None, reason="needs PostgreSQL's initdb and pg_ctl"),
]
CONVERSIONS = 20


@pytest.fixture
def postgresql() -> Iterator[str]:
    """The address of a PostgreSQL server with the databases of a team."""
    folder = Path(tempfile.mkdtemp(prefix="trtops-pg-"))
    user = "postgres" if os.getuid() == 0 else None  # PostgreSQL refuses to run as root
    if user is not None:
        shutil.chown(folder, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(*command: str) -> None:
        subprocess.run(command, cwd=folder, user=user, check=True, capture_output=True, text=True)

    data = str(folder / "data")
    call("initdb", "-D", data, "-U", "trtops", "--auth=trust")
    options = f"-p {port} -k {folder} -c max_connections=300 -c listen_addresses=127.0.0.1"
    # Its output goes to a file: a pipe would stay open as long as the server runs.
    call("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        for name in ("prefect", "mlflow", "mlflow_auth"):
            call("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "trtops", name)
        yield f"postgresql://trtops@127.0.0.1:{port}"
    finally:
        call("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def team(tmp_path: Path, postgresql: str) -> Iterator[RunningTeam]:
    for number in range(CONVERSIONS):
        models.conv_net().fixed().write(tmp_path).rename(tmp_path / f"net{number}.onnx")
    with running_team(tmp_path, database=postgresql) as started:
        deploy(started)
        yield started
        for log in sorted(started.folder.glob("logs/worker*.log*")):
            print(log.name, *log.read_text().splitlines()[-150:], sep="\n")


def start_workers(team: RunningTeam, *numbers: int) -> None:
    """Start further workers of the CPU pool, which end with the team."""
    [worker] = servers.stages(team.folder, team.state)[1]
    for number in numbers:
        name = f"worker-cpu-{number}"
        command = [argument.replace("worker-cpu-", f"{name}-") for argument in worker.command]
        servers._start(replace(worker, name=name, command=command), team.folder)


def is_at_work(team: RunningTeam, worker: str) -> bool:
    """True if a flow run of a worker is running, and not only being started."""
    flow_runs = set()
    for process in servers.all_processes(team.folder, worker):
        with suppress(psutil.Error):
            flow_runs.add(process.environ().get("PREFECT__FLOW_RUN_ID"))
    return any(team.flow_state(flow_run)[0] == "RUNNING" for flow_run in flow_runs - {None})


def kill(team: RunningTeam, name: str) -> None:
    """Kill a server or worker with everything that it started, as if its machine had lost power."""
    processes = servers.all_processes(team.folder, name)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes)


def test_conversions_of_killed_workers_are_done_once(team: RunningTeam) -> None:
    start_workers(team, 2, 3, 4)
    tracker = OfflineTracker(team.tracker(), default_spool(None))
    flow_runs = [
        team.start("convert/convert-cpu", model=str(team.models / f"net{number}.onnx"), experiment="dead")
        for number in range(CONVERSIONS)
    ]

    def of_kind(*kinds: str) -> list[str]:
        return [flow_run for flow_run in flow_runs if team.flow_state(flow_run)[0] in kinds]

    doomed = ("worker-cpu", "worker-cpu-3")
    eventually(lambda: of_kind("COMPLETED") and all(is_at_work(team, name) for name in doomed), pause=0)
    for name in (*doomed, "mlflow"):
        kill(team, name)
    time.sleep(5)
    servers.up(team.folder)  # the first worker and MLflow; the third stays away
    # An automation runs `reap` at each crash, and its schedule does every 15 minutes; here, every two.
    while len(of_kind("COMPLETED")) < CONVERSIONS and not of_kind("FAILED"):
        team.start("reap/reap-cpu")
        time.sleep(120)

    assert len(of_kind("COMPLETED")) == CONVERSIONS
    tracker.upload_spool()
    finished = tracker.find("dead", status="finished")
    counts = collections.Counter(info.tags[schema.Tag.PREFECT_FLOW_RUN] for info in finished)
    assert counts == dict.fromkeys(flow_runs, 1)
    assert {info.verdict for info in finished} == {"good"}
    starts = [team.call("GET", f"flow_runs/{flow_run}")["run_count"] for flow_run in flow_runs]
    print("starts of flow runs:", collections.Counter(starts), "killed:", len(tracker.find("dead", status="killed")))
    assert max(starts) > 1  # or nothing was killed at work
