"""Make inputs of saved inputs and outputs: arrays of the same iteration, from all files, become one feed.

With it the outputs of one part of a model become the inputs of the next.
"""

from __future__ import annotations

from trtops import ops
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say

GROUPS = (
    Group(
        "data",
        (
            Flag(names=("paths",), takes="many", help="files of saved inputs or outputs"),
            Flag(names=("-o", "--output"), to="output", required=True, shown="FILE", help="where to write the inputs"),
        ),
    ),
)
EXAMPLES = ("trtops data merge inputs.json outputs.json -o layer_inputs.json",)


def plan(args: Asked) -> tuple[tuple[str, ...], str]:
    """The files, and where to write."""
    return tuple(args.paths), args.output


def execute(plan: tuple[tuple[str, ...], str]) -> int:
    """Join, and write."""
    count = ops.merge(plan[0], plan[1])

    say(f"Wrote {count} iterations to {plan[1]}")
    return 0
