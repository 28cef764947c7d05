"""End the servers and workers that `trtops team up` started, and no others. Flow runs end with their worker."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Asked, Group
from trtops.cli.logs import say

GROUPS = (Group("servers", (store.ROOT,)),)
EXAMPLES = ("trtops team down",)


def plan(args: Asked) -> str | None:
    """The store's folder."""
    root: str | None = args.root
    return root


def execute(plan: str | None) -> int:
    """End them."""
    from trtops import team

    status = team.down(folder=team.TeamFolder.default(plan), progress=say)
    say(status.text() or f"No servers were started for {team.TeamFolder.default(plan).root.parent}.")
    return 0
