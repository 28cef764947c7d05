"""Show a tactic record: the tactic of each layer. Reads records of trtops, and Polygraphy's replay files."""

from __future__ import annotations

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, op_job

GROUPS = (Group("record", (flag("tactic_replay", "the file"),)), groups.JSON)
EXAMPLES = ("trtops inspect tactics replay.json",)


def plan(args: Options) -> Job:
    """Return the job."""
    return op_job(args, "inspect_tactics", args.tactic_replay)
