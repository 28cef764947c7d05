"""Show a tactic record: which tactic each layer got. Takes records of trtops, and Polygraphy's replay files."""

from __future__ import annotations

from trtops.cli import asking, groups
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.script import call

GROUPS = (Group("record", (Flag(names=("tactic_replay",), help="the file"),)), groups.JSON)
EXAMPLES = ("trtops inspect tactics replay.json",)


def plan(args: Asked) -> asking.Question:
    """The question."""
    return asking.Question(call("trtops.ops", "inspect_tactics", args.tactic_replay), bool(args.json))


execute = asking.answer
