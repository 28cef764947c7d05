"""Take the weights out of an ONNX model, so that its structure can be shared: what is left behaves, but knows nothing."""

from __future__ import annotations

from trtops.cli import groups, surgery
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.script import call

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "weights",
        (Flag(names=("--exclude-list",), shown="FILE", help="a file with the names of weights that stay, one a line"),),
    ),
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
)
EXAMPLES = ("trtops surgeon weight-strip model.onnx -o structure.onnx",)


def plan(args: Asked) -> surgery.Operation:
    """The operation."""
    kept = call("trtops.cli.surgery", "names_in", args.exclude_list) if args.exclude_list else ()
    return surgery.operation(args, "strip_weights", exclude=kept)


execute = surgery.operate
