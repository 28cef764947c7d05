"""Findings of `trtops doctor` about servers and workers, with what to do about each problem."""

from __future__ import annotations

import base64
import json
import os
import urllib.request

from trtops.team.access import team_folder
from trtops.team.servers import ANSWER_SECONDS, status
from trtops.tracking.health import HealthFinding, server_finding


def team_findings(root: str | None = None) -> list[HealthFinding]:
    """Servers and workers of this machine, and the Prefect server that ``PREFECT_API_URL`` names. Starts nothing."""
    services = status(team_folder(root))
    down = [f"{service.name} is {service.state}" for service in services if service.state != "up"]
    if not services:
        text = "no servers were started on this machine"
        found = [HealthFinding(subject="team", state="none", text=text, remedy="trtops team up")]
    elif down:
        found = [HealthFinding(subject="team", state="problem", text="; ".join(down), remedy="trtops team up")]
    else:
        found = [HealthFinding(subject="team", state="ok", text=f"{len(services)} servers and workers are up")]
    if address := os.environ.get("PREFECT_API_URL"):
        login = os.environ.get("PREFECT_API_AUTH_STRING", "")
        found.append(server_finding("Prefect", address, "/health", login=login))
        if found[-1].state == "ok":
            found += _worker_findings(address, login)
    return found


def _worker_findings(address: str, login: str) -> list[HealthFinding]:
    """The work pools, and whether each has a worker."""
    headers = {"Content-Type": "application/json"}
    if login:
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    request = urllib.request.Request(f"{address.rstrip('/')}/work_pools/filter", data=b"{}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            pools = json.load(answer)
    except (OSError, ValueError) as exc:
        return [HealthFinding(subject="workers", state="problem", text=f"Prefect does not list its work pools: {exc}")]
    if not pools:
        text = "there are no work pools, so nothing is deployed"
        return [HealthFinding(subject="workers", state="none", text=text, remedy="make deploy")]
    found = []
    for pool in pools:
        name, ready = str(pool["name"]), pool.get("status") == "READY"
        remedy = "" if ready else f"prefect worker start --type {pool.get('type', 'process')} --pool {name}"
        text = f"pool {name} has a worker" if ready else f"no worker polls pool {name}"
        found.append(HealthFinding(subject="workers", state="ok" if ready else "problem", text=text, remedy=remedy))
    return found
