"""Start Prefect, MLflow and a worker on this machine, unless they are up."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job
from trtops.cli.logs import say
from trtops.team.state import TeamConfig

_DEFAULT = "(default: as at the last start, or %s)"

GROUPS = (
    Group(
        "servers",
        (
            store.ROOT,
            flag("--prefect-port N", f"port of Prefect; 0: a free one {_DEFAULT % 4200}"),
            flag("--mlflow-port N", f"port of MLflow; 0: a free one {_DEFAULT % 5000}"),
            flag(
                "--database URL",
                "address of a PostgreSQL server with the databases prefect, mlflow and mlflow_auth (default: SQLite "
                "files in the store's folder; cannot change later)",
            ),
            flag("--limit N", f"number of flow runs at a time on a worker {_DEFAULT % 2}"),
            flag("--gpu CHOICE", "also start a worker for GPUs (default: if there is a GPU)", choices=("yes", "no")),
            flag("--wait SECONDS", "how long to wait for each server", default=240.0),
        ),
    ),
)
EXAMPLES = (
    "trtops team up",
    "trtops team up --prefect-port 4300 --mlflow-port 5100",
    "trtops team up --database postgresql://trtops@db.example.org",
)


def plan(args: Options) -> Job:
    """Return the job."""
    config = TeamConfig(
        prefect_port=args.prefect_port,
        mlflow_port=args.mlflow_port,
        database=args.database,
        limit=args.limit,
        gpu=None if args.gpu is None else args.gpu == "yes",
        wait_seconds=args.wait,
    )
    return Job(call=_start, args=(args.root, config))


def _start(root: str | None, config: TeamConfig) -> int:
    from trtops import team

    folder = team.TeamFolder.default(root)
    status = team.up(config, folder=folder, progress=say)
    say(f"\n{status.text()}\n")
    option = f" --root {folder.root.parent}" if root is not None else ""
    say(f"Passwords are in {folder.passwords}. To use the servers from this shell:\n")
    say(f'  eval "$(trtops team env{option})"\n')
    say("`make deploy` registers the deployments, `trtops team down` ends the servers.")
    return 0 if status.all_up else 1
