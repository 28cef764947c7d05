"""Put files of saved inputs, or of saved outputs, behind one another: their iterations in the order of the files."""

from __future__ import annotations

from trtops import ops
from trtops.cli.commands.data.merge import GROUPS
from trtops.cli.flags import Asked
from trtops.cli.logs import say

__all__ = ["EXAMPLES", "GROUPS", "execute", "plan"]

EXAMPLES = ("trtops data concat monday.json tuesday.json -o both.json",)


def plan(args: Asked) -> tuple[tuple[str, ...], str]:
    """The files, and where to write."""
    return tuple(args.paths), args.output


def execute(plan: tuple[tuple[str, ...], str]) -> int:
    """Join, and write."""
    count = ops.concat(plan[0], plan[1])

    say(f"Wrote {count} iterations to {plan[1]}")
    return 0
