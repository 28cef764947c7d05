"""The deployments of ``prefect.yaml``: registered with a server for its work pools, or served from this process.

``make deploy`` is ``python -m flows.deployments deploy``, and ``make serve`` the same with ``serve``. Both talk to the server at
``PREFECT_API_URL``, or else to the one that ``trtops team up`` started for the default store.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.forms import form_of
from trtops import errors, team
from trtops.team.state import POOLS

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment

# Prefect reads the address of its server when it is first imported: nothing here does so before `_use_server`.

FILE = Path(__file__).resolve().parents[1] / "prefect.yaml"
SILENCE = "trtops: flow runs that fell silent"
SILENT_FOR = timedelta(minutes=10)
"""More than three times as long as Prefect's default between heartbeats (PREFECT_FLOWS_HEARTBEAT_FREQUENCY)."""

_ANSWER_SECONDS = 60.0
_WITHOUT_SERVER = (
    "Start one on this machine by `make up` (trtops team up). One that runs already is found by PREFECT_API_URL, such as "
    "http://127.0.0.1:4200/api; where `trtops team up` was called in another folder, this sets it, called there: "
    'eval "$(trtops team env)".'
)


def deploy(checkout: str | None = None) -> int:
    """Register all deployments, and make the work pools that are missing.

    Args:
        checkout: The folder of this project on the machines of the workers; this one's unless given.

    Returns:
        How many deployments there are now.

    Raises:
        ConfigError: If there is no server, it lets nobody in, or a deployment is refused.
    """
    _use_server()
    from prefect.deployments.runner import DeploymentApplyError
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.runner.storage import LocalStorage

    for pool in _make_missing_pools():
        print(f"Made the work pool {pool}.", flush=True)
    _watch_for_silence()
    storage = LocalStorage(checkout or str(FILE.parent))
    paused = _paused_by_serving()
    listed = read_deployments()
    for each in listed:
        pool = each["work_pool"]
        deployment = _deployment_from(each, paused=False if _deployment_key(each) in paused else None)
        deployment.work_pool_name, deployment.job_variables = pool["name"], pool.get("job_variables") or {}
        deployment.storage = storage
        try:
            deployment.apply()
        except (DeploymentApplyError, PrefectHTTPStatusError) as exc:
            raise errors.ConfigError(f"Prefect refused the deployment {deployment.full_name}: {exc}") from exc
    return len(listed)


def serve(limit: int = 2) -> None:
    """Register all deployments as served by this process, and carry out their runs here until it is interrupted.

    Args:
        limit: Runs at a time.

    Raises:
        ConfigError: If there is no server, or it lets nobody in.
    """
    _use_server()
    from prefect import serve as prefect_serve

    os.chdir(FILE.parent)  # paths in parameters are relative to it, as they are where a worker runs the flow
    # They are paused from the end of the last time on.
    prefect_serve(*(_deployment_from(each, paused=False) for each in read_deployments()), limit=limit)


def read_deployments() -> list[dict[str, Any]]:
    """The deployments as they stand in ``prefect.yaml``."""
    import yaml  # type: ignore[import-untyped]

    listed: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    return listed


def _deployment_key(deployment: Mapping[str, Any]) -> tuple[str, str]:
    """What a deployment is known by: its flow and its name."""
    return str(deployment["entrypoint"]), str(deployment["name"])


def _deployment_from(deployment: Mapping[str, Any], paused: bool | None) -> RunnerDeployment:
    """A deployment of ``prefect.yaml``, without its work pool.

    Args:
        deployment: As it stands there.
        paused: Whether its schedules rest; None leaves that as it is.
    """
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.schedules import Schedule
    from prefect.types.entrypoint import EntrypointType

    module, _, function = deployment["entrypoint"].rpartition(".")
    flow = getattr(importlib.import_module(module), function)
    limit = deployment.get("concurrency_limit")
    schedules = [
        Schedule(**{**each, **({"interval": timedelta(seconds=each["interval"])} if "interval" in each else {})})
        for each in deployment.get("schedules", ())
    ]
    described: RunnerDeployment = flow.to_deployment(
        name=deployment["name"],
        description=deployment["description"],
        parameters=deployment.get("parameters"),
        entrypoint_type=EntrypointType.MODULE_PATH,
        paused=paused,
        schedules=schedules,
        concurrency_limit=None if limit is None else ConcurrencyLimitConfig(**limit),
    )
    described._parameter_openapi_schema = form_of(flow)
    return described


def _use_server() -> None:
    """Find a server, and make sure that it answers and lets us in.

    Raises:
        ConfigError: If there is none, or it does not.
    """
    if not os.environ.get("PREFECT_API_URL"):
        os.environ.pop("PREFECT_API_URL", None)
        with suppress(errors.ConfigError):  # no team here
            os.environ.update(team.client_environment())
    url = os.environ.get("PREFECT_API_URL")
    if url is None:
        raise errors.ConfigError(f"No Prefect server is named. {_WITHOUT_SERVER}")
    request = urllib.request.Request(f"{url.rstrip('/')}/admin/version")
    if auth := os.environ.get("PREFECT_API_AUTH_STRING"):
        request.add_header("Authorization", f"Basic {base64.b64encode(auth.encode()).decode()}")
    elif key := os.environ.get("PREFECT_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        urllib.request.urlopen(request, timeout=_ANSWER_SECONDS).close()
    except urllib.error.HTTPError as exc:
        if exc.code not in (401, 403):
            raise errors.ConfigError(f"The server at {url} answered {exc.code}. Is it Prefect's API?") from None
        raise errors.ConfigError(
            f"The Prefect server at {url} lets nobody in ({exc.code}). Set PREFECT_API_AUTH_STRING to user:password."
        ) from None
    except (OSError, ValueError) as exc:
        raise errors.ConfigError(f"No Prefect server answers at {url}: {exc}. {_WITHOUT_SERVER}") from None


def _make_missing_pools() -> list[str]:
    """Make the work pools that the server does not have; returns their names."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    made = []
    with get_client(sync_client=True) as client:
        there = {pool.name for pool in client.read_work_pools()}
        for pool in POOLS.values():
            if pool in there:
                continue
            template = ProcessWorker.get_default_base_job_template()
            with suppress(ObjectAlreadyExists):  # made by another at this moment
                client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
                made.append(pool)
    return made


def _watch_for_silence() -> None:
    """Have the server end flow runs that fell silent: nobody else can tell of a process whose whole machine is gone."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    heartbeat, ends = (
        "prefect.flow-run.heartbeat",
        ("Completed", "Failed", "Crashed", "Cancelled", "Paused", "Suspended"),
    )
    silence = AutomationCore(
        name=SILENCE,
        description="A deployed flow run whose process sends no heartbeats any more is marked as crashed.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            after={heartbeat},
            expect={heartbeat, *(f"prefect.flow-run.{end}" for end in ends)},
            for_each={"prefect.resource.id"},
            match={"prefect.resource.id": ["prefect.flow-run.*"]},
            within=SILENT_FOR,
            threshold=1,
        ),
        actions=[
            ChangeFlowRunState(
                name=None,
                state=StateType.CRASHED,
                force=False,
                message=f"Its process sent no heartbeat for {SILENT_FOR.seconds // 60} minutes: it or its machine is gone.",
            )
        ],
    )
    with get_client(sync_client=True) as client:
        if not client.read_automations_by_name(SILENCE):
            client.create_automation(silence)


def _paused_by_serving() -> set[tuple[str, str]]:
    """Those that are paused and have no work pool: a process that served them paused them when it ended, and no person did."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return {
            (str(found.entrypoint), found.name)
            for found in client.read_deployments()
            if found.paused and found.work_pool_name is None
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m flows.deployments deploy|serve``. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flows.deployments", description="Deploy the flows.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    register = verbs.add_parser("deploy", help="register the deployments of prefect.yaml for its work pools")
    register.add_argument(
        "--checkout", default=os.environ.get("TRTOPS_CHECKOUT"), help="this project's folder on the workers' machines"
    )
    here = verbs.add_parser("serve", help="serve all of them from this process")
    here.add_argument("--limit", type=int, default=2, help="runs at a time (default: 2)")
    given = parser.parse_args(arguments)
    try:
        if given.verb == "serve":
            serve(given.limit)
        else:
            count = deploy(given.checkout)
            print(f"{count} deployments are registered. Run one: prefect deployment run convert/cpu -p model=<file>")
    except errors.TrtopsError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
