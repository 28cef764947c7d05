"""Print user and password of one of the team's servers, for its page in a browser."""

from __future__ import annotations

from dataclasses import dataclass

from trtops.cli import store
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say

GROUPS = (
    Group(
        "servers",
        (Flag(names=("server",), choices=("mlflow", "prefect"), required=True, help="which server"), store.ROOT),
    ),
)
EXAMPLES = ("trtops team password mlflow", "trtops team password prefect")


@dataclass(frozen=True)
class Plan:
    """What to print.

    Attributes:
        server: ``mlflow`` or ``prefect``.
        root: The store's folder.
    """

    server: str
    root: str | None


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(args.server, args.root)


def execute(plan: Plan) -> int:
    """Print."""
    from trtops.team.access import Passwords
    from trtops.team.state import TeamFolder

    found = Passwords.read(TeamFolder.default(plan.root).passwords)
    say(found.prefect_auth if plan.server == "prefect" else f"{found.mlflow_user}:{found.mlflow_password}")
    return 0
