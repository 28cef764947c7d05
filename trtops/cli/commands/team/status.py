"""Report which of the team's servers and workers are up, where, and since when. Exits with 1 if one is not."""

from __future__ import annotations

from dataclasses import dataclass

from trtops.cli import groups, store
from trtops.cli.flags import Asked, Group
from trtops.cli.logs import say, say_json

GROUPS = (Group("servers", (store.ROOT,)), groups.JSON)
EXAMPLES = ("trtops team status", "trtops team status --json")


@dataclass(frozen=True)
class Plan:
    """What to look at.

    Attributes:
        root: The store's folder.
        json: Whether to print JSON.
    """

    root: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(args.root, bool(args.json))


def execute(plan: Plan) -> int:
    """Look, and print."""
    from trtops import team

    folder = team.TeamFolder.default(plan.root)
    status = team.status(folder)
    if plan.json:
        say_json(status.to_dict())
    else:
        say(status.text() or f"No servers were started for {folder.root.parent}. Start them: trtops team up")
    return 0 if status.services and status.all_up else 1
