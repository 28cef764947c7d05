"""Report which of the team's servers and workers are up, where, and since when. Exits with 1 if one is not."""

from __future__ import annotations

from trtops.cli import groups, store
from trtops.cli.flags import Group, Options
from trtops.cli.jobs import Job
from trtops.cli.logs import say, say_json

GROUPS = (Group("servers", (store.ROOT,)), groups.JSON)
EXAMPLES = ("trtops team status", "trtops team status --json")


def plan(args: Options) -> Job:
    """Return the job."""
    return Job(call=_status, args=(args.root, bool(args.json)))


def _status(root: str | None, as_json: bool) -> int:
    from trtops import team

    folder = team.TeamFolder.default(root)
    status = team.status(folder)
    if as_json:
        say_json(status.to_dict())
    else:
        say(status.text() or f"No servers were started for {folder.root.parent}. Start them: trtops team up")
    return 0 if status.services and status.all_up else 1
