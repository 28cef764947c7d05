"""Whether servers and workers are there: what `trtops doctor` says of them, and what to do where one is not."""

from __future__ import annotations

import base64
import json
import os
import urllib.request
from typing import Any

from trtops.team.api import ANSWER_SECONDS
from trtops.team.folder import TeamFolder
from trtops.team.servers import status
from trtops.tracking.health import HealthFinding, server_finding


def team_findings(root: str | None = None) -> list[HealthFinding]:
    """Servers and workers of this machine, and the Prefect server that ``PREFECT_API_URL`` names. Starts nothing."""
    found = [_of_team(root)]
    if address := os.environ.get("PREFECT_API_URL"):
        login = os.environ.get("PREFECT_API_AUTH_STRING", "")
        prefect = server_finding("Prefect", address, "/health", login=login)
        found.append(prefect)
        if prefect.state == "ok":
            found += _worker_findings(address, login)
    return found


def _of_team(root: str | None) -> HealthFinding:
    folder = TeamFolder.default(root)
    if folder.read() is None:
        return HealthFinding(
            subject="team", state="none", text="no servers were started on this machine", remedy="trtops team up"
        )
    now = status(folder)
    down = [f"{service.name} is {service.state}" for service in now.services if service.state != "up"]
    if down:
        return HealthFinding(subject="team", state="problem", text="; ".join(down), remedy="trtops team up")
    return HealthFinding(subject="team", state="ok", text=f"{len(now.services)} servers and workers are up")


def _worker_findings(address: str, login: str) -> list[HealthFinding]:
    """Work pools, and whether a worker takes their work."""
    try:
        pools = _ask(address, login, "work_pools/filter")
    except (OSError, ValueError) as exc:
        return [HealthFinding(subject="workers", state="problem", text=f"Prefect does not say which there are: {exc}")]
    if not pools:
        text = "there are no work pools, so that nothing is deployed"
        return [HealthFinding(subject="workers", state="none", text=text, remedy="make deploy")]
    found = []
    for pool in pools:
        name, ready = str(pool["name"]), pool.get("status") == "READY"
        remedy = "" if ready else f"prefect worker start --type {pool.get('type', 'process')} --pool {name}"
        text = f"pool {name} has a worker" if ready else f"no worker takes the work of pool {name}"
        found.append(HealthFinding(subject="workers", state="ok" if ready else "problem", text=text, remedy=remedy))
    return found


def _ask(address: str, login: str, path: str) -> Any:
    headers = {"Content-Type": "application/json"}
    if login:
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    request = urllib.request.Request(f"{address.rstrip('/')}/{path}", data=b"{}", headers=headers)
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        return json.load(answer)
