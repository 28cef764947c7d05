"""Print the environment variables that a shell needs to use the team's servers. The lines contain no passwords."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Group, Options
from trtops.cli.jobs import Job
from trtops.cli.logs import say

GROUPS = (Group("servers", (store.ROOT,)),)
EXAMPLES = ("trtops team env", 'eval "$(trtops team env)"')


def plan(args: Options) -> Job:
    """Return the job."""
    return Job(call=_print_lines, args=(args.root,))


def _print_lines(root: str | None) -> int:
    from trtops.team.access import shell_lines
    from trtops.team.state import TeamFolder

    say(shell_lines(TeamFolder.default(root)))
    return 0
