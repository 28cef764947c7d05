"""Start Prefect, MLflow and a worker on this machine, unless they are up."""

from __future__ import annotations

from dataclasses import dataclass

from trtops.cli import store
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say
from trtops.team.state import TeamConfig

_DEFAULT = "(default: as at the last start, or %s)"

GROUPS = (
    Group(
        "servers",
        (
            store.ROOT,
            Flag(names=("--prefect-port",), convert=int, help=f"port of Prefect; 0: a free one {_DEFAULT % 4200}"),
            Flag(names=("--mlflow-port",), convert=int, help=f"port of MLflow; 0: a free one {_DEFAULT % 5000}"),
            Flag(
                names=("--database",),
                shown="URL",
                help="address of a PostgreSQL server with the databases prefect, mlflow and mlflow_auth (default: SQLite "
                "files in the store's folder; cannot change later)",
            ),
            Flag(names=("--limit",), convert=int, help=f"number of flow runs at a time on a worker {_DEFAULT % 2}"),
            Flag(
                names=("--gpu",),
                choices=("yes", "no"),
                help="also start a worker for GPUs (default: if there is a GPU)",
            ),
            Flag(
                names=("--wait",),
                convert=float,
                default=240.0,
                shown="SECONDS",
                help="how long to wait for each server",
            ),
        ),
    ),
)
EXAMPLES = (
    "trtops team up",
    "trtops team up --prefect-port 4300 --mlflow-port 5100",
    "trtops team up --database postgresql://trtops@db.example.org",
)


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
