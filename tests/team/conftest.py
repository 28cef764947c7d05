"""Real servers of a team for the tests of a file, on free ports."""

import base64
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.waiting import FOR_EVER
from trtops.team import servers
from trtops.team.access import TeamState, started_state
from trtops.tracking.mlflow import MlflowTracker

T = TypeVar("T")

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
"""Final states of a flow run."""

QUICK = {
    "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "5",
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
}
"""Makes Prefect poll for work more often."""


def eventually(look: Callable[[], T], pause: float = 0.2) -> T:
    """Wait for a true value of ``look()``; the test's own time limit ends this."""
    while not (answer := look()):
        time.sleep(pause)
    return answer


@dataclass(frozen=True)
class RunningTeam:
    """The running servers."""

    folder: Path
    models: Path

    @property
    def state(self) -> TeamState:
        return started_state(self.folder)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call Prefect's API."""
        auth = base64.b64encode(self.state.prefect_auth.encode()).decode()
        request = urllib.request.Request(
            f"{self.state.prefect_url}/api/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Basic {auth}", "Content-Type": "application/json"},
        )
        for attempt in range(20):
            try:
                with urllib.request.urlopen(request) as answer:
                    text = answer.read()
                    return json.loads(text) if text else None
            except urllib.error.HTTPError as exc:
                # SQLite was locked, or PostgreSQL did not answer in time; Prefect's own clients try again too.
                if exc.code not in ((500, 503) if method == "GET" else (503,)) or attempt == 19:
                    raise LookupError(f"{exc.code}: {exc.read().decode()}") from exc
            time.sleep(0.5)

    def deployment(self, name: str) -> Any:
        return self.call("GET", f"deployments/name/{name}")

    def start(self, deployment: str, job_variables: Mapping[str, Any] | None = None, **parameters: Any) -> str:
        """Create a flow run of a deployment; returns its id."""
        record = self.deployment(deployment)
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}, "job_variables": job_variables or {}}
        return str(self.call("POST", f"deployments/{record['id']}/create_flow_run", body)["id"])

    def flow_state(self, flow_run: str) -> tuple[str, str]:
        """Type and message of a flow run's state."""
        state = self.call("GET", f"flow_runs/{flow_run}")["state"]
        return state["type"], state["message"] or ""

    def wait_for(self, flow_run: str, *types: str) -> str:
        """Wait until a flow run ends in one of some states; returns the state's message."""
        kind, message = eventually(lambda: state if (state := self.flow_state(flow_run))[0] in FINAL else None)
        assert kind in types, f"{kind}: {message}\n{(self.folder / 'logs' / 'worker-cpu.log').read_text()[-3000:]}"
        return message

    def tracker(self) -> MlflowTracker:
        """The tracking store; the environment must name the file of passwords."""
        return MlflowTracker(self.state.mlflow_url)


@contextmanager
def running_team(folder: Path, **settings: Any) -> Iterator[RunningTeam]:
    """Start servers and a worker, and end them; ``settings`` are fields of :class:`TeamState`."""
    before = dict(os.environ)
    os.environ.update(QUICK)
    team = folder / "team"
    with socket.socket() as first, socket.socket() as second:
        for free in (first, second):
            free.bind(("127.0.0.1", 0))
        ports = first.getsockname()[1], second.getsockname()[1]
    try:
        servers.up(team, prefect_port=ports[0], mlflow_port=ports[1], gpu=False, wait_seconds=FOR_EVER, **settings)
        os.environ["TRTOPS_CREDENTIALS"] = str(team / "passwords.ini")
        yield RunningTeam(team, folder)
    finally:
        for name in {*os.environ} - {*before}:
            del os.environ[name]
        os.environ.update(before)
        servers.down(team)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A team's folder without servers."""
    (tmp_path / "team").mkdir()
    return tmp_path / "team"
