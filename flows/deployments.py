"""Register the deployments of ``prefect.yaml``: ``make deploy``, or ``python -m flows.deployments``.

The server is that of ``PREFECT_API_URL``, or else the one that ``trtops team up`` started for the default store.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import UUID

import yaml  # type: ignore[import-untyped, unused-ignore]

from trtops import errors
from trtops.team.access import POOLS, client_environment, has_gpu

if TYPE_CHECKING:
    from prefect.events.schemas.automations import AutomationCore

FILE = Path(__file__).resolve().parents[1] / "prefect.yaml"
AUTOMATIONS = FILE.with_name("automations.yaml")
QUEUES = {"scheduled": None, "interactive": None, "bulk": 1}
"""Queues of each work pool, highest priority first, with the number of flow runs at a time."""
HINT = "Start one on this machine by `make up` (trtops team up), or set PREFECT_API_URL and PREFECT_API_AUTH_STRING."


def deploy() -> None:
    """Register all deployments and automations, with missing work pools and queues.

    Raises ConfigError if there is no server, it cannot be used, or it refuses a deployment.
    """
    if not os.environ.get("PREFECT_API_URL"):
        try:
            os.environ.update(client_environment())
        except errors.ConfigError:  # without an address, Prefect would start a server of its own
            raise errors.ConfigError(f"No Prefect server is configured. {HINT}") from None
    # Prefect reads the address when it is first imported.
    from prefect.blocks.webhook import Webhook
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
    from prefect.workers.process import ProcessWorker
    from pydantic import SecretStr

    left_out: set[str] = set()
    with get_client(sync_client=True) as client:
        try:
            pools = {pool.name for pool in client.read_work_pools()}
        except Exception as exc:  # Prefect's, httpx's and pydantic's, for servers that are no Prefect server
            url = os.environ["PREFECT_API_URL"]
            raise errors.ConfigError(f"The Prefect server at {url} cannot be used: {exc}. {HINT}") from None
        if not (has_gpu() or POOLS["gpu"] in pools or os.environ.get("TRTOPS_GPU")):
            left_out.add(POOLS["gpu"])
            print("No GPU here: deployments for GPUs are left out. To register them too: TRTOPS_GPU=1 make deploy")
        for pool in sorted({*POOLS.values()} - left_out):
            template = ProcessWorker.get_default_base_job_template()
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
                print(f"Created the work pool {pool}.", flush=True)
            for priority, (name, limit) in enumerate(QUEUES.items(), 1):
                with suppress(ObjectAlreadyExists):  # a limit that was changed stays
                    client.create_work_queue(name, priority=priority, concurrency_limit=limit, work_pool_name=pool)
        webhook = None
        if address := os.environ.get("TRTOPS_WEBHOOK"):
            webhook = cast(UUID, Webhook(url=SecretStr(address)).save("trtops", overwrite=True))
        else:
            with suppress(ObjectNotFound):
                webhook = client.read_block_document_by_name("trtops", "webhook").id
    names = _register(left_out)
    with get_client(sync_client=True) as client:
        for name in names:
            # Prefect would start a run with an unknown parameter, which crashes before the flow can report it.
            deployment = client.read_deployment_by_name(name)
            schema = {**(deployment.parameter_openapi_schema or {}), "additionalProperties": False}
            client.update_deployment(deployment.id, DeploymentUpdate(parameter_openapi_schema=schema))

        def find(name: str) -> UUID | None:
            with suppress(ObjectNotFound):
                return client.read_deployment_by_name(name).id
            return None

        for automation in automations(webhook, find):
            if present := client.read_automations_by_name(automation.name):
                automation.enabled = present[0].enabled
                client.update_automation(present[0].id, automation)
            else:
                client.create_automation(automation)


def _register(left_out: Collection[str]) -> list[str]:
    """Register the deployments of all work pools but some, print each and return their names.

    ConfigError if Prefect refuses one.
    """
    deployments = yaml.safe_load(FILE.read_text())["deployments"]
    names = [entry["name"] for entry in deployments if entry["work_pool"]["name"] not in left_out]
    chosen = [argument for name in names for argument in ("--name", name)]
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", *chosen, "--prefect-file", str(FILE)]
    # The pull step of prefect.yaml names the folder of this project on the workers' machines.
    environment = {"TRTOPS_CHECKOUT": str(FILE.parent), "PYTHONUNBUFFERED": "1", **os.environ}
    print(f"Registering {len(names)} deployments ...", flush=True)
    lines, registered = [], list[str]()
    with subprocess.Popen(
        command, cwd=FILE.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            lines.append(line)
            if match := re.search(r"Deployment '(\S+)' successfully created", line):
                registered.append(match[1])
                print(f"  {match[1]}", flush=True)
    if process.returncode:
        raise errors.ConfigError(f"Prefect refused a deployment: {''.join(lines).strip()[-2000:]}")
    return registered


def automations(webhook: UUID | None, find: Callable[[str], UUID | None]) -> list[AutomationCore]:
    """The automations of ``automations.yaml``, without those calling a webhook unless its block is given.

    ``find`` returns the id of a deployment, which actions name as ``deployment``; None if it is not registered, and
    the automation is left out.
    """
    from prefect.events.schemas.automations import AutomationCore

    validated = []
    for automation in yaml.safe_load(AUTOMATIONS.read_text())["automations"]:
        calls = [action for action in automation["actions"] if action["type"] == "call-webhook"]
        if webhook is not None or not calls:
            # Actions that are shared in the file are one object.
            actions = [action | ({"block_document_id": webhook} if calls else {}) for action in automation["actions"]]
            for action in actions:
                if "deployment" in action:
                    action["deployment_id"] = find(action.pop("deployment"))
            if None not in [action.get("deployment_id", "") for action in actions]:
                validated.append(AutomationCore.model_validate(automation | {"actions": actions}))
    return validated


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
