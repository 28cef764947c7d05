"""Concatenate files of saved inputs, or of saved outputs: their iterations in the order of the files."""

from __future__ import annotations

from trtops.cli.commands.data import merge
from trtops.cli.flags import Options
from trtops.cli.jobs import Job

GROUPS = merge.GROUPS
EXAMPLES = ("trtops data concat monday.json tuesday.json -o both.json",)


def plan(args: Options) -> Job:
    """Return the job."""
    return Job(call=merge.write, args=("concat", tuple(args.paths), args.output))
