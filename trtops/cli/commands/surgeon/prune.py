"""Make weights 2:4 sparse, or remove nodes of some types from a model.

Sparse weights show the speed of sparse kernels; accuracy is lost. A removed node passes its input on.
"""

from __future__ import annotations

from pathlib import Path

from trtops.cli import groups, surgery
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "pruning",
        (
            flag("--remove-node-types OP+", "types of nodes to remove, instead of sparsity"),
            flag("-o --output FILE", "where to write it (default: <model>.pruned.onnx)", to="output"),
        ),
    ),
    groups.SAVE_AS,
    groups.ONNX_LOAD,
)
EXAMPLES = (
    "trtops surgeon prune model.onnx -o sparse.onnx",
    "trtops surgeon prune model.onnx --remove-node-types CustomOp -o plain.onnx",
)


def plan(args: Options) -> Job:
    """Return the job."""
    args.output = args.output or f"{Path(args.model_file).stem}.pruned.onnx"
    if args.remove_node_types:
        return surgery.job(args, "remove_nodes", tuple(args.remove_node_types))
    return surgery.job(args, "prune")
