"""Print user and password of one of the team's servers, such as its page in a browser asks for."""

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
    from trtops.team.access import password
    from trtops.team.folder import TeamFolder

    say(password(TeamFolder.default(plan.root), plan.server))
    return 0
