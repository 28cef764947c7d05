"""Register the deployments of ``prefect.yaml``: ``make deploy``, or ``python -m flows.deployments``.

The server is that of ``PREFECT_API_URL``, or else the one that ``trtops team up`` started for the default store.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from trtops import errors
from trtops.team.access import POOLS, client_environment

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment

# Prefect reads the address of its server when it is first imported: nothing here imports it before `use_server`.

FILE = Path(__file__).resolve().parents[1] / "prefect.yaml"
SILENCE = "trtops: flow runs without heartbeats"
SILENT_MINUTES = 10  # more than three times Prefect's default between heartbeats (PREFECT_FLOWS_HEARTBEAT_FREQUENCY)


def read_deployments() -> list[dict[str, Any]]:
    """The deployments of ``prefect.yaml``."""
    listed: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    return listed


def make_deployment(listed: dict[str, Any]) -> RunnerDeployment:
    """A deployment of ``prefect.yaml``, without its work pool."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.schedules import Schedule
    from prefect.types.entrypoint import EntrypointType

    module, _, name = listed["entrypoint"].rpartition(".")
    limit = listed.get("concurrency_limit")
    schedules = []
    for each in listed.get("schedules", ()):
        interval: dict[str, Any] = {"interval": timedelta(seconds=each["interval"])} if "interval" in each else {}
        schedules.append(Schedule(**{**each, **interval}))
    made: RunnerDeployment = getattr(importlib.import_module(module), name).to_deployment(
        name=listed["name"],
        description=listed["description"],
        parameters=listed.get("parameters"),
        entrypoint_type=EntrypointType.MODULE_PATH,
        schedules=schedules,
        concurrency_limit=None if limit is None else ConcurrencyLimitConfig(**limit),
    )
    return made


def deploy(checkout: str | None = None) -> int:
    """Register all deployments, with the work pools that are missing; returns the number of deployments.

    Args:
        checkout: The folder of this project on the workers' machines; this one's unless given.

    Raises:
        ConfigError: If there is no server, it refuses us, or it refuses a deployment.
    """
    use_server()
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.deployments.runner import DeploymentApplyError
    from prefect.exceptions import ObjectAlreadyExists, PrefectHTTPStatusError
    from prefect.runner.storage import LocalStorage
    from prefect.workers.process import ProcessWorker

    with get_client(sync_client=True) as client:
        for pool in {*POOLS.values()} - {pool.name for pool in client.read_work_pools()}:
            template = ProcessWorker.get_default_base_job_template()
            with suppress(ObjectAlreadyExists):  # created by another process at this moment
                client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
                print(f"Created the work pool {pool}.", flush=True)
        if not client.read_automations_by_name(SILENCE):
            client.create_automation(_silence_automation())
    listed = read_deployments()
    for each in listed:
        deployment = make_deployment(each)
        deployment.work_pool_name = each["work_pool"]["name"]
        deployment.job_variables = each["work_pool"].get("job_variables") or {}
        deployment.storage = LocalStorage(checkout or str(FILE.parent))
        try:
            deployment.apply()
        except (DeploymentApplyError, PrefectHTTPStatusError) as exc:
            raise errors.ConfigError(f"Prefect refused the deployment {deployment.full_name}: {exc}") from exc
    return len(listed)


def _silence_automation() -> Any:
    """An automation that ends flow runs without heartbeats: if a whole machine is gone, only the server can do so."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    heartbeat, ends = (
        "prefect.flow-run.heartbeat",
        ("Completed", "Failed", "Crashed", "Cancelled", "Paused", "Suspended"),
    )
    return AutomationCore(
        name=SILENCE,
        description="Marks a deployed flow run as crashed if its process sends no more heartbeats.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            after={heartbeat},
            expect={heartbeat, *(f"prefect.flow-run.{end}" for end in ends)},
            for_each={"prefect.resource.id"},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            within=timedelta(minutes=SILENT_MINUTES),
            threshold=1,
        ),
        actions=[
            ChangeFlowRunState(
                name=None,
                state=StateType.CRASHED,
                force=False,
                message=f"Its process sent no heartbeat for {SILENT_MINUTES} minutes: it or its machine is gone.",
            )
        ],
    )


def use_server() -> None:
    """Find a server, and make sure that it accepts our requests.

    Raises:
        ConfigError: If no server is found, or it rejects them.
    """
    hint = (
        "Start one on this machine by `make up` (trtops team up), or set PREFECT_API_URL and PREFECT_API_AUTH_STRING."
    )
    if not os.environ.get("PREFECT_API_URL"):
        with suppress(errors.ConfigError):  # no servers were started here
            os.environ.update(client_environment())
    url = os.environ.get("PREFECT_API_URL")
    if not url:  # Prefect would start a server of its own
        raise errors.ConfigError(f"No Prefect server is configured. {hint}")
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            client.read_work_pools()
    except Exception as exc:  # Prefect's, httpx's and pydantic's, for servers that are no Prefect server
        raise errors.ConfigError(f"The Prefect server at {url} cannot be used: {exc}. {hint}") from None


def main() -> int:
    """Deploy, and return the exit code."""
    try:
        count = deploy(os.environ.get("TRTOPS_CHECKOUT"))
    except errors.TrtopsError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 3
    print(f"{count} deployments are registered. Run one: prefect deployment run convert/cpu -p model=<file>")
    return 0


if __name__ == "__main__":
    sys.exit(main())
