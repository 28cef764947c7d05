"""The commands of ``trtops data``."""

from __future__ import annotations

from trtops import ops
from trtops.cli.flags import Group, flag
from trtops.cli.jobs import Command, Job
from trtops.cli.logs import say

_GROUPS = (
    Group(
        "data",
        (
            flag("paths+", "files of saved inputs or outputs"),
            flag("-o --output FILE", "where to write the inputs", to="output", required=True),
        ),
    ),
)


def _join(op: str, paths: tuple[str, ...], output: str) -> int:
    say(f"Wrote {getattr(ops, op)(paths, output)} iterations to {output}")
    return 0


COMMANDS = {
    "merge": Command(
        lambda args: Job(call=_join, args=("merge", tuple(args.paths), args.output)),
        _GROUPS,
        ("trtops data merge inputs.json outputs.json -o layer_inputs.json",),
        "Make inputs from saved inputs and outputs: arrays of the same iteration, from all files, become one feed. "
        "The outputs "
        "of one part of a model can so become the inputs of the next.",
    ),
    "concat": Command(
        lambda args: Job(call=_join, args=("concat", tuple(args.paths), args.output)),
        _GROUPS,
        ("trtops data concat monday.json tuesday.json -o both.json",),
        "Concatenate files of saved inputs, or of saved outputs: their iterations in the order of the files.",
    ),
}
