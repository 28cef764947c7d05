"""Make weights 2:4 sparse, or take nodes of some types out of a model.

Sparse weights show what sparse kernels gain; accuracy is lost. A node that is taken out passes its input on.
"""

from __future__ import annotations

from pathlib import Path

from trtops.cli import groups, surgery
from trtops.cli.flags import Asked, Flag, Group

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "pruning",
        (
            Flag(
                names=("--remove-node-types",),
                takes="many",
                shown="OP",
                help="types of nodes to take out, instead of sparsity",
            ),
        ),
    ),
    Group(
        "saving",
        (
            Flag(
                names=("-o", "--output"),
                to="output",
                shown="FILE",
                help="where to write it (default: <model>.pruned.onnx)",
            ),
            *groups.ONNX_SAVE.flags[1:],
        ),
    ),
    groups.ONNX_LOAD,
)
EXAMPLES = (
    "trtops surgeon prune model.onnx -o sparse.onnx",
    "trtops surgeon prune model.onnx --remove-node-types CustomOp -o plain.onnx",
)


def plan(args: Asked) -> surgery.Operation:
    """The operation."""
    args.output = args.output or f"{Path(args.model_file).stem}.pruned.onnx"
    if args.remove_node_types:
        return surgery.operation(args, "remove_nodes", tuple(args.remove_node_types))
    return surgery.operation(args, "prune")


execute = surgery.operate
