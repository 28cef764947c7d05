"""Put weights back into a stripped model: those of the original, or random ones of the same types and shapes."""

from __future__ import annotations

from trtops.cli import groups, surgery
from trtops.cli.flags import Asked, Flag, Group

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "weights",
        (Flag(names=("--original",), shown="FILE", help="the model that has the weights; random ones unless given"),),
    ),
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
)
EXAMPLES = ("trtops surgeon weight-reconstruct structure.onnx -o random.onnx",)


def plan(args: Asked) -> surgery.Operation:
    """The operation."""
    return surgery.operation(args, "reconstruct_weights", original=args.original)


execute = surgery.operate
