"""Findings of `trtops doctor` about servers and workers, with what to do about each problem."""

from __future__ import annotations

import os

from trtops.team.servers import status
from trtops.tracking.check import HealthFinding, server_finding


def team_findings() -> list[HealthFinding]:
    """Servers and workers of this machine, and the Prefect server that ``PREFECT_API_URL`` names. Starts nothing."""
    services = status()
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
    return found
