"""Print user and password of one of the team's servers, for its page in a browser."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job
from trtops.cli.logs import say

GROUPS = (Group("servers", (flag("server", "which server", choices=("mlflow", "prefect")), store.ROOT)),)
EXAMPLES = ("trtops team password mlflow", "trtops team password prefect")


def plan(args: Options) -> Job:
    """Return the job."""
    return Job(call=_print_password, args=(args.server, args.root))


def _print_password(server: str, root: str | None) -> int:
    from trtops.team.access import Passwords
    from trtops.team.state import TeamFolder

    found = Passwords.read(TeamFolder.default(root).passwords)
    say(found.prefect_auth if server == "prefect" else f"{found.mlflow_user}:{found.mlflow_password}")
    return 0
