"""Clean an ONNX model.

Folds constants, removes what no output needs, sorts nodes, changes input shapes and outputs, and bounds sizes that
are known only at run time.
"""

from __future__ import annotations

from typing import Any

from trtops import ops
from trtops.cli import groups, surgery, values
from trtops.cli.flags import Asked, Flag, Group

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "cleaning",
        (
            Flag(names=("--fold-constants",), takes="switch", help="compute what does not depend on inputs"),
            Flag(names=("--num-passes", "--num-const-fold-passes"), convert=int, shown="N", help="most passes; until nothing folds unless given"),
            Flag(
                names=("--partitioning",), choices=("basic", "recursive"), help="what to do about nodes that cannot be folded",
                idle="a node that cannot be folded never keeps others from it",
            ),
            Flag(names=("--no-fold-shapes",), takes="switch", help="do not fold shapes"),
            Flag(names=("--no-per-pass-shape-inference",), takes="switch", help="do not infer shapes between passes"),
            Flag(names=("--fold-size-threshold",), convert=values.size, shown="BYTES", help="larger tensors are not folded"),
            Flag(names=("--cleanup",), takes="switch", help="remove nodes and weights that no output needs"),
            Flag(names=("--toposort",), takes="switch", help="put nodes into an order of execution"),
            Flag(
                names=("--override-input-shapes", "--override-inputs"), to="input_shapes", takes="many", convert=values.shape,
                shown="NAME:[DIMS]", help="other shapes of inputs",
            ),
            Flag(
                names=("--set-unbounded-dds-upper-bound",), takes="many", convert=values.named_whole, shown="[TENSOR:]N",
                help="bounds of sizes known only at run time",
            ),
            Flag(names=("--outputs",), to="new_outputs", takes="many", shown="NAME", help="tensors to be the outputs; 'mark all' for all"),
            Flag(names=("--exclude-outputs",), takes="many", shown="NAME", help="outputs to leave out"),
            Flag(names=("--outputs-by-type",), takes="many", shown="OP", help="types of nodes whose results are to be the outputs"),
            Flag(names=("--no-shape-inference",), takes="switch", help="infer no shapes"),
            Flag(names=("--no-onnxruntime-shape-inference",), takes="switch", help="infer shapes without ONNX Runtime's symbolic inference"),
        ),
    ),
    surgery.OBSERVING,
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
)  # fmt: skip
EXAMPLES = (
    "trtops surgeon sanitize model.onnx --fold-constants --cleanup -o clean.onnx",
    "trtops surgeon sanitize model.onnx --override-input-shapes x:[8,3,224,224] -o batch8.onnx",
)


def plan(args: Asked) -> surgery.Operation:
    """The operation."""
    config = ops.SanitizeConfig(
        input_shapes=dict(args.input_shapes or ()),
        fold_constants=bool(args.fold_constants),
        fold_shapes=not args.no_fold_shapes,
        infer_shapes=not (args.no_shape_inference or args.no_per_pass_shape_inference),
        symbolic_shapes=not args.no_onnxruntime_shape_inference,
        max_passes=args.num_passes,
        max_folded_bytes=args.fold_size_threshold,
        cleanup=bool(args.cleanup),
        sort=bool(args.toposort),
        outputs=_output_names(args.new_outputs),
        exclude_outputs=None if args.exclude_outputs is None else tuple(args.exclude_outputs),
        output_types=None if args.outputs_by_type is None else tuple(args.outputs_by_type),
        upper_bounds={name: int(bound) for name, bound in args.set_unbounded_dds_upper_bound or ()},
    )
    return surgery.operation(args, "sanitize", config)


def _output_names(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    return ("mark-all",) if list(names) == ["mark", "all"] else tuple(names)


execute = surgery.operate
