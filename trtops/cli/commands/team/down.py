"""End the servers and workers that `trtops team up` started, and no others. Flow runs end with their worker."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Group, Options
from trtops.cli.jobs import Job
from trtops.cli.logs import say

GROUPS = (Group("servers", (store.ROOT,)),)
EXAMPLES = ("trtops team down",)


def plan(args: Options) -> Job:
    """Return the job."""
    return Job(call=_down, args=(args.root,))


def _down(root: str | None) -> int:
    from trtops import team

    folder = team.TeamFolder.default(root)
    status = team.down(folder=folder, progress=say)
    say(status.text() or f"No servers were started for {folder.root.parent}.")
    return 0
