"""The same servers with PostgreSQL as the database of both: `make test-postgres`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models
from tests.team.conftest import DEPLOY, RunningTeam, deploying, running_team, what_is_said
from trtops import team
from trtops.team import processes
from trtops.team.postgres import find_postgres
from trtops.tracking import schema

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(os.environ.get("TRTOPS_REQUIRE_POSTGRES") != "1", reason="needs PostgreSQL: make test-postgres"),
]


@pytest.fixture(scope="module")
def servers() -> Iterator[RunningTeam]:
    with tempfile.TemporaryDirectory(prefix="trtops-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # as root PostgreSQL runs as a user of its own, who has to get in
        models.conv_net().write(folder)
        with running_team(folder, "postgresql") as running:
            yield running


def test_both_servers_keep_their_data_in_a_cluster_that_nobody_else_reaches(servers: RunningTeam):
    status = team.status(servers.folder)

    assert [service.name for service in status.services] == ["postgres", "prefect", "mlflow", "worker-cpu"]
    assert status.all_up and status.database == "postgresql", status.text()
    assert not list(servers.folder.root.rglob("*.db"))
    socket = find_postgres(servers.folder.postgres).socket_folder / ".s.PGSQL.5432"
    assert socket.stat().st_mode & 0o777 == 0o700
    assert servers.folder.postgres.stat().st_mode & 0o777 == 0o700


def test_a_schedule_fires_its_run_is_kept_and_still_there_after_a_restart(servers: RunningTeam):
    with deploying(servers, DEPLOY) as process:
        what_is_said(process)
    found = servers.deployment("convert/cpu")
    parameters = {"model": str(servers.models / "conv_net.onnx")}
    body = [{"schedule": {"interval": 5}, "active": True, "parameters": parameters}]
    made = servers.call("POST", f"deployments/{found['id']}/schedules", body)
    info = servers.first_finished("conv_net")
    servers.call("DELETE", f"deployments/{found['id']}/schedules/{made[0]['id']}")
    flow_run = info.tags[schema.Tag.PREFECT_FLOW_RUN]
    assert servers.call("GET", f"flow_runs/{flow_run}")["auto_scheduled"] is True

    tokens = [started.token for started in servers.state.services]
    team.down(folder=servers.folder)
    assert [pid for token in tokens for pid in processes._with_token(token)] == []
    team.up(folder=servers.folder)

    assert servers.tracker().info(info.id).verdict == "good"
    assert servers.tracker().load(info.id).manifest.artifacts
    assert servers.flow_state(flow_run)[0] == "COMPLETED"
