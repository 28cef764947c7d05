"""Register the deployments of ``prefect.yaml``: ``make deploy``, or ``python -m flows.deployments``.

The server is that of ``PREFECT_API_URL``, or else the one that ``trtops team up`` started for the default store.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.team.access import POOLS, client_environment

FILE = Path(__file__).resolve().parents[1] / "prefect.yaml"
SILENCE = "trtops: flow runs without heartbeats"
# More than three times Prefect's default between heartbeats (PREFECT_FLOWS_HEARTBEAT_FREQUENCY).
SILENT_MINUTES = 10
HINT = "Start one on this machine by `make up` (trtops team up), or set PREFECT_API_URL and PREFECT_API_AUTH_STRING."


def deploy() -> None:
    """Register all deployments, with the work pools that are missing.

    Raises ConfigError if there is no server, it cannot be used, or it refuses a deployment.
    """
    if not os.environ.get("PREFECT_API_URL"):
        try:
            os.environ.update(client_environment())
        except errors.ConfigError:  # without an address, Prefect would start a server of its own
            raise errors.ConfigError(f"No Prefect server is configured. {HINT}") from None
    # Prefect reads the address when it is first imported.
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    with get_client(sync_client=True) as client:
        try:
            present = {pool.name for pool in client.read_work_pools()}
        except Exception as exc:  # Prefect's, httpx's and pydantic's, for servers that are no Prefect server
            url = os.environ["PREFECT_API_URL"]
            raise errors.ConfigError(f"The Prefect server at {url} cannot be used: {exc}. {HINT}") from None
        for pool in {*POOLS.values()} - present:
            template = ProcessWorker.get_default_base_job_template()
            with suppress(ObjectAlreadyExists):  # created by another process at this moment
                client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
                print(f"Created the work pool {pool}.", flush=True)
        if not client.read_automations_by_name(SILENCE):
            client.create_automation(_silence_automation())
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(FILE)]
    # The pull step of prefect.yaml names the folder of this project on the workers' machines.
    environment = {"TRTOPS_CHECKOUT": str(FILE.parent), **os.environ}
    done = subprocess.run(command, cwd=FILE.parent, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise errors.ConfigError(f"Prefect refused a deployment: {(done.stderr or done.stdout).strip()[-2000:]}")


def _silence_automation() -> Any:
    """An automation that ends flow runs without heartbeats: if a whole machine is gone, only the server can do so."""
    from prefect.events.schemas.automations import AutomationCore

    beat, ends = "prefect.flow-run.heartbeat", ("Completed", "Failed", "Crashed", "Cancelled", "Paused", "Suspended")
    message = f"Its process sent no heartbeat for {SILENT_MINUTES} minutes: it or its machine is gone."
    trigger = {
        "type": "event",
        "posture": "Proactive",
        "after": [beat],
        "expect": [beat, *(f"prefect.flow-run.{end}" for end in ends)],
        "for_each": ["prefect.resource.id"],
        "match": {"prefect.resource.id": ["prefect.flow-run.*"]},
        "within": 60 * SILENT_MINUTES,
        "threshold": 1,
    }
    action = {"type": "change-flow-run-state", "state": "CRASHED", "message": message}
    description = "Marks a deployed flow run as crashed if its process sends no more heartbeats."
    return AutomationCore.model_validate(
        {"name": SILENCE, "description": description, "trigger": trigger, "actions": [action]}
    )


def main() -> int:
    """Deploy, and return the exit code."""
    try:
        deploy()
        print("All deployments are registered. Run one: prefect deployment run convert/convert-cpu -p model=<file>")
        return 0
    except errors.TrtopsError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
