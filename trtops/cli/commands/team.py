"""The commands of ``trtops team``. The package that starts servers is imported when one runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Command, Job
from trtops.cli.logs import say, say_json
from trtops.team.access import TeamState

_DEFAULT = "(default: as at the last start, or %s)"
_ROOT = (Group("servers", (groups.ROOT,)),)


def _up(args: Options) -> Job:
    changes = {name: getattr(args, name) for name in ("prefect_port", "mlflow_port", "database", "limit")}
    changes["gpu"] = None if args.gpu is None else args.gpu == "yes"
    TeamState(**{name: value for name, value in changes.items() if value is not None})  # checks the values
    return Job(call=_start, args=(args.root, args.wait, changes))


def _start(root: str | None, wait_seconds: float, changes: Mapping[str, Any]) -> int:
    from trtops import team

    folder = team.team_folder(root)
    status = team.up(folder, wait_seconds=wait_seconds, progress=say, **changes)
    option = f" --root {folder.parent}" if root is not None else ""
    text = "\n".join(each.text for each in status)
    say(f"\n{text}\n\nPasswords are in {folder}/passwords.ini. To use the servers from this shell:\n")
    say(f'  eval "$(trtops team env{option})"\n')
    say("`make deploy` registers the deployments, `trtops team down` ends the servers.")
    return 0 if all(each.state == "up" for each in status) else 1


def _down(root: str | None) -> int:
    from trtops import team

    folder = team.team_folder(root)
    status = team.down(folder, progress=say)
    say("\n".join(each.text for each in status) or f"No servers were started for {folder.parent}.")
    return 0


def _status(root: str | None, as_json: bool) -> int:
    from trtops import team

    folder = team.team_folder(root)
    status = team.status(folder)
    if as_json:
        say_json([each.to_dict() for each in status])
    else:
        nothing = f"No servers were started for {folder.parent}. Start them: trtops team up"
        say("\n".join(each.text for each in status) or nothing)
    return 0 if status and all(each.state == "up" for each in status) else 1


def _env(root: str | None) -> int:
    from trtops.team.access import shell_lines, team_folder

    say(shell_lines(team_folder(root)))
    return 0


def _password(server: str, root: str | None) -> int:
    from trtops.team.access import Passwords, team_folder

    found = Passwords.ensure(team_folder(root))
    say(found.prefect_auth if server == "prefect" else f"{found.mlflow_user}:{found.mlflow_password}")
    return 0


COMMANDS = {
    "up": Command(
        _up,
        (
            Group(
                "servers",
                (
                    groups.ROOT,
                    flag("--prefect-port N", f"port of Prefect; 0: a free one {_DEFAULT % 4200}"),
                    flag("--mlflow-port N", f"port of MLflow; 0: a free one {_DEFAULT % 5000}"),
                    flag(
                        "--database URL",
                        "address of a PostgreSQL server with the databases prefect, mlflow and mlflow_auth (default: "
                        "SQLite files in the store's folder; cannot change later)",
                    ),
                    flag("--limit N", f"number of flow runs at a time on a worker {_DEFAULT % 2}"),
                    flag("--gpu CHOICE", "start a worker for GPUs (default: if there is one)", choices=("yes", "no")),
                    flag("--wait SECONDS", "how long to wait for each server", default=240.0),
                ),
            ),
        ),
        (
            "trtops team up",
            "trtops team up --prefect-port 4300 --mlflow-port 5100",
            "trtops team up --database postgresql://trtops@db.example.org",
        ),
        "Start Prefect, MLflow and a worker on this machine, unless they are up.",
    ),
    "down": Command(
        lambda args: Job(call=_down, args=(args.root,)),
        _ROOT,
        ("trtops team down",),
        "End the servers and workers that `trtops team up` started, and no others. Flow runs end with their worker.",
    ),
    "status": Command(
        lambda args: Job(call=_status, args=(args.root, bool(args.json))),
        (*_ROOT, groups.JSON),
        ("trtops team status", "trtops team status --json"),
        "Report which of the team's servers and workers are up, where, and since when. Exits with 1 if one is not.",
    ),
    "env": Command(
        lambda args: Job(call=_env, args=(args.root,)),
        _ROOT,
        ("trtops team env", 'eval "$(trtops team env)"'),
        "Print the environment variables that a shell needs to use the team's servers. They contain no passwords.",
    ),
    "password": Command(
        lambda args: Job(call=_password, args=(args.server, args.root)),
        (Group("servers", (flag("server", "which server", choices=("mlflow", "prefect")), groups.ROOT)),),
        ("trtops team password mlflow", "trtops team password prefect"),
        "Print user and password of one of the team's servers, for its page in a browser.",
    ),
}
