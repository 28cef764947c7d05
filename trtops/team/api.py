"""What is asked of the team's Prefect server, without importing Prefect."""

from __future__ import annotations

import base64
import json
import logging
import urllib.request
from datetime import datetime
from typing import Any

from trtops.team.config import TeamState
from trtops.team.passwords import Passwords

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
_PATIENT_SECONDS = 60.0
_UNDER_WAY = ("PENDING", "RUNNING", "CANCELLING")
_LOST = "Its worker ended with it: they were killed, or their machine went down."


def opener() -> urllib.request.OpenerDirector:
    """What opens addresses of this machine, past any proxy."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_polling(state: TeamState, passwords: Passwords, pool: str, worker: str, since: float) -> bool:
    """Whether Prefect's server has heard from a worker since it was started; one that died stays "online" for a while."""
    asked = {"workers": {"status": {"any_": ["ONLINE"]}}}
    try:
        found = _post_json(state, passwords, f"work_pools/{pool}/workers/filter", asked, ANSWER_SECONDS)
    except (OSError, ValueError):
        return False
    return any(each["name"] == worker and _seconds_since_epoch(each["last_heartbeat_time"]) >= since for each in found)


def crash_lost_runs(state: TeamState, passwords: Passwords, pool: str, worker: str) -> None:
    """Mark as crashed what a worker that is no more had under way: nobody else can, if it was killed with its flow runs.

    Args:
        state: Ports.
        passwords: Of the servers.
        pool: The worker's pool.
        worker: Its name, which no other worker has.
    """
    asked = {
        "flow_runs": {"state": {"type": {"any_": _UNDER_WAY}}},
        "work_pools": {"name": {"any_": [pool]}},
        "limit": 200,
    }
    crashed = {"state": {"type": "CRASHED", "name": "Crashed", "message": _LOST}, "force": True}
    try:
        for run in _post_json(state, passwords, "flow_runs/filter", asked, _PATIENT_SECONDS):
            if run["labels"].get("prefect.worker.name") == worker:
                _post_json(state, passwords, f"flow_runs/{run['id']}/set_state", crashed, _PATIENT_SECONDS)
                log.warning("Flow run %r is marked as crashed: its worker ended with it.", run["name"])
    except (OSError, ValueError) as exc:  # the worker is of more use than the states of what it lost
        log.warning("Flow runs that were lost with %s could not be marked as crashed: %s", worker, exc)


def _post_json(state: TeamState, passwords: Passwords, path: str, body: object, seconds: float) -> Any:
    auth = base64.b64encode(passwords.prefect_auth.encode()).decode()
    request = urllib.request.Request(
        f"{state.prefect_url}/api/{path}",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Basic {auth}", "Content-Type": "application/json"},
    )
    with opener().open(request, timeout=seconds) as answer:
        return json.load(answer)


def _seconds_since_epoch(timestamp: str) -> float:
    """Seconds since the epoch; Python 3.10 knows no ``Z`` for UTC."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
