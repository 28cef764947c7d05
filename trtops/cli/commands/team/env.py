"""Print the environment variables that a shell needs to use the team's servers. The lines contain no passwords."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Asked, Group
from trtops.cli.logs import say

GROUPS = (Group("servers", (store.ROOT,)),)
EXAMPLES = ("trtops team env", 'eval "$(trtops team env)"')


def plan(args: Asked) -> str | None:
    """The store's folder."""
    root: str | None = args.root
    return root


def execute(plan: str | None) -> int:
    """Print."""
    from trtops.team.access import shell_lines
    from trtops.team.state import TeamFolder

    say(shell_lines(TeamFolder.default(plan)))
    return 0
