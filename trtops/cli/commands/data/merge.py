"""Make inputs from saved inputs and outputs: arrays of the same iteration, from all files, become one feed.

The outputs of one part of a model can so become the inputs of the next.
"""

from __future__ import annotations

from trtops import ops
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job
from trtops.cli.logs import say

GROUPS = (
    Group(
        "data",
        (
            flag("paths+", "files of saved inputs or outputs"),
            flag("-o --output FILE", "where to write the inputs", to="output", required=True),
        ),
    ),
)
EXAMPLES = ("trtops data merge inputs.json outputs.json -o layer_inputs.json",)


def plan(args: Options) -> Job:
    """Return the job."""
    return Job(call=write, args=("merge", tuple(args.paths), args.output))


def write(op: str, paths: tuple[str, ...], output: str) -> int:
    """Join files with an op, and print how much was written."""
    say(f"Wrote {getattr(ops, op)(paths, output)} iterations to {output}")
    return 0
