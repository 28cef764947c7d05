"""The commands of ``trtops data``."""

from trtops import ops
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import direct_command
from trtops.cli.logs import say

_FILES = Group(
    "data",
    flag("paths+", "files of saved inputs or outputs", file="reads"),
    flag("-o --output FILE", "where to write the inputs", required=True),
)


def _join(op: str, args: Options) -> int:
    say(f"Wrote {getattr(ops, op)(tuple(args.paths), args.output)} iterations to {args.output}")
    return 0


@direct_command(_FILES, examples=("trtops data merge inputs.json outputs.json -o layer_inputs.json",))
def merge(args: Options) -> int:
    """Make inputs from saved inputs and outputs: arrays of the same iteration, from all files, become one feed.

    The outputs of one part of a model can so become the inputs of the next.
    """
    return _join("merge", args)


@direct_command(_FILES, examples=("trtops data concat monday.json tuesday.json -o both.json",))
def concat(args: Options) -> int:
    """Concatenate files of saved inputs, or of saved outputs: their iterations in the order of the files."""
    return _join("concat", args)
