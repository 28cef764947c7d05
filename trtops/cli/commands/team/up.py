"""Start Prefect, MLflow, their database and a worker on this machine, as far as they are not up."""

from __future__ import annotations

from dataclasses import dataclass

from trtops.cli import store
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say
from trtops.team.config import TeamConfig

_KEPT = "(default: as the last time, or %s)"

GROUPS = (
    Group(
        "servers",
        (
            store.ROOT,
            Flag(names=("--prefect-port",), convert=int, help=f"port of Prefect; 0: a free one {_KEPT % 4200}"),
            Flag(names=("--mlflow-port",), convert=int, help=f"port of MLflow; 0: a free one {_KEPT % 5000}"),
            Flag(
                names=("--database",),
                choices=("postgresql", "sqlite"),
                help="where both keep their data (default: PostgreSQL where it is installed; stays once it is chosen)",
            ),
            Flag(names=("--limit",), convert=int, help=f"flow runs at a time on a worker {_KEPT % 2}"),
            Flag(names=("--gpu",), choices=("yes", "no"), help="a worker for GPUs too (default: where there is a GPU)"),
            Flag(names=("--wait",), convert=float, default=240.0, shown="SECONDS", help="for each to answer"),
        ),
    ),
)
EXAMPLES = ("trtops team up", "trtops team up --prefect-port 4300 --mlflow-port 5100 --database sqlite")


@dataclass(frozen=True)
class Plan:
    """What to start.

    Attributes:
        root: The store's folder.
        config: Ports and numbers.
    """

    root: str | None
    config: TeamConfig


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(
        args.root,
        TeamConfig(
            prefect_port=args.prefect_port,
            mlflow_port=args.mlflow_port,
            database=args.database,
            limit=args.limit,
            gpu=None if args.gpu is None else args.gpu == "yes",
            wait_seconds=args.wait,
        ),
    )


def execute(plan: Plan) -> int:
    """Start them, and say where they are."""
    from trtops import team

    folder = team.TeamFolder.default(plan.root)
    status = team.up(plan.config, folder=folder, progress=say)
    say(f"\n{status.text()}\n")
    root = f" --root {folder.root.parent}" if plan.root is not None else ""
    say(f"Passwords are in {folder.passwords}. To use the servers from this shell:\n")
    say(f'  eval "$(trtops team env{root})"\n')
    say("`make deploy` registers the deployments, `trtops team down` ends the servers.")
    return 0 if status.all_up else 1
