"""The commands of ``trtops team``."""

# The package that starts servers imports Prefect, which takes a second. Help does not need it.

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, direct_command
from trtops.cli.logs import say, say_json
from trtops.cli.script import given
from trtops.team.access import MLFLOW_USER, TeamState, program, shell_lines, started_state, team_folder

_DEFAULT = "(default: as at the last start, or %s)"
_ROOT = Group("servers", groups.ROOT)


@command(
    Group(
        "servers",
        groups.ROOT,
        flag("--prefect-port N", f"port of Prefect {_DEFAULT % 4200}"),
        flag("--mlflow-port N", f"port of MLflow {_DEFAULT % 5000}"),
        # Not made here: creating databases needs rights that a team's server need not give.
        flag("--database URL", "a PostgreSQL server with databases prefect, mlflow and mlflow_auth (default: SQLite)"),
        flag("--limit N", f"number of flow runs at a time on the CPU worker {_DEFAULT % 2}"),
        flag("--gpu {yes,no}", "start a worker for GPUs (default: if there is one)"),
    ),
    examples=("trtops team up", "trtops team up --database postgresql://trtops@db.example.org"),
)
def up(args: Options) -> Job:
    """Start Prefect, MLflow and a worker on this machine, unless they are up."""
    changes = args.pick("prefect_port", "mlflow_port", "database", "limit")
    changes["gpu"] = None if args.gpu is None else args.gpu == "yes"
    # Checks the values, so that a wrong one is wrong usage.
    TeamState(**given(**changes))
    root = args.root

    def run() -> int:
        from trtops.team import servers

        folder = team_folder(root)
        status = servers.up(folder, **changes)
        option = f" --root {folder.parent}" if root is not None else ""
        text = "\n".join(server.text for server in status)
        say(f"\n{text}\n\n`trtops team password` prints the passwords. To use the servers from this shell:\n")
        say(f'  eval "$({program()} team env{option})"\n')
        say("`make deploy` registers the deployments, `trtops team down` ends the servers.")
        return 0 if all(server.state == "up" for server in status) else 1

    return run


@direct_command(_ROOT, examples=("trtops team down",))
def down(args: Options) -> int:
    """End the servers and workers that `trtops team up` started, and no others. Flow runs end with their worker."""
    from trtops.team import servers

    folder = team_folder(args.root)
    status = servers.down(folder)
    say("\n".join(server.text for server in status) or f"No servers were started for {folder.parent}.")
    return 0


@direct_command(_ROOT, groups.JSON, examples=("trtops team status", "trtops team status --json"))
def status(args: Options) -> int:
    """Report which of the team's servers and workers are up, where, and since when. Exits with 1 if one is not."""
    from trtops.team import servers

    folder = team_folder(args.root)
    status = servers.status(folder)
    if args.json:
        say_json([server.to_dict() for server in status])
    else:
        nothing = f"No servers were started for {folder.parent}. Start them: trtops team up"
        say("\n".join(server.text for server in status) or nothing)
    return 0 if status and all(server.state == "up" for server in status) else 1


@direct_command(_ROOT, examples=("trtops team env", 'eval "$(trtops team env)"'))
def env(args: Options) -> int:
    """Print the environment variables that a shell needs to use the team's servers. They contain no passwords."""
    say(shell_lines(team_folder(args.root)))
    return 0


@direct_command(
    Group("servers", flag("server {mlflow,prefect}", "which server"), groups.ROOT),
    examples=("trtops team password mlflow", "trtops team password prefect"),
)
def password(args: Options) -> int:
    """Print user and password of one of the team's servers, for its page in a browser."""
    state = started_state(team_folder(args.root))
    say(state.prefect_auth if args.server == "prefect" else f"{MLFLOW_USER}:{state.mlflow_password}")
    return 0
