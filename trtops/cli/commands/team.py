"""The commands of ``trtops team``. The package that starts servers is imported when one runs."""

from __future__ import annotations

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command
from trtops.cli.logs import say, say_json
from trtops.team.access import MLFLOW_USER, TeamState, shell_lines, started_state, team_folder

_DEFAULT = "(default: as at the last start, or %s)"
_ROOT = Group("servers", groups.ROOT)


@command(
    Group(
        "servers",
        groups.ROOT,
        flag("--prefect-port N", f"port of Prefect {_DEFAULT % 4200}"),
        flag("--mlflow-port N", f"port of MLflow {_DEFAULT % 5000}"),
        flag(
            "--database URL", "a PostgreSQL server with the databases prefect, mlflow and mlflow_auth (default: SQLite)"
        ),
        flag("--limit N", f"number of flow runs at a time on a worker {_DEFAULT % 2}"),
        flag("--gpu {yes,no}", "start a worker for GPUs (default: if there is one)"),
        flag("--wait SECONDS", "how long to wait for each server", default=240.0),
    ),
    examples=("trtops team up", "trtops team up --database postgresql://trtops@db.example.org"),
)
def up(args: Options) -> Job:
    """Start Prefect, MLflow and a worker on this machine, unless they are up."""
    changes = {name: getattr(args, name) for name in ("prefect_port", "mlflow_port", "database", "limit")}
    changes["gpu"] = None if args.gpu is None else args.gpu == "yes"
    TeamState(**{name: value for name, value in changes.items() if value is not None})  # checks the values
    root, wait_seconds = args.root, args.wait

    def run() -> int:
        from trtops.team import servers

        folder = team_folder(root)
        status = servers.up(folder, wait_seconds=wait_seconds, **changes)
        option = f" --root {folder.parent}" if root is not None else ""
        text = "\n".join(each.text for each in status)
        say(f"\n{text}\n\n`trtops team password` prints the passwords. To use the servers from this shell:\n")
        say(f'  eval "$(trtops team env{option})"\n')
        say("`make deploy` registers the deployments, `trtops team down` ends the servers.")
        return 0 if all(each.state == "up" for each in status) else 1

    return run


@command(_ROOT, examples=("trtops team down",))
def down(args: Options) -> Job:
    """End the servers and workers that `trtops team up` started, and no others. Flow runs end with their worker."""
    root = args.root

    def run() -> int:
        from trtops.team import servers

        folder = team_folder(root)
        status = servers.down(folder)
        say("\n".join(each.text for each in status) or f"No servers were started for {folder.parent}.")
        return 0

    return run


@command(_ROOT, groups.JSON, examples=("trtops team status", "trtops team status --json"))
def status(args: Options) -> Job:
    """Report which of the team's servers and workers are up, where, and since when. Exits with 1 if one is not."""
    root, as_json = args.root, bool(args.json)

    def run() -> int:
        from trtops.team import servers

        folder = team_folder(root)
        status = servers.status(folder)
        if as_json:
            say_json([each.to_dict() for each in status])
        else:
            nothing = f"No servers were started for {folder.parent}. Start them: trtops team up"
            say("\n".join(each.text for each in status) or nothing)
        return 0 if status and all(each.state == "up" for each in status) else 1

    return run


@command(_ROOT, examples=("trtops team env", 'eval "$(trtops team env)"'))
def env(args: Options) -> Job:
    """Print the environment variables that a shell needs to use the team's servers. They contain no passwords."""
    root = args.root

    def run() -> int:
        say(shell_lines(team_folder(root)))
        return 0

    return run


@command(
    Group("servers", flag("server {mlflow,prefect}", "which server"), groups.ROOT),
    examples=("trtops team password mlflow", "trtops team password prefect"),
)
def password(args: Options) -> Job:
    """Print user and password of one of the team's servers, for its page in a browser."""
    server, root = args.server, args.root

    def run() -> int:
        state = started_state(team_folder(root))
        say(state.prefect_auth if server == "prefect" else f"{MLFLOW_USER}:{state.mlflow_password}")
        return 0

    return run
