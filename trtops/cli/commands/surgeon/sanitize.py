"""Clean an ONNX model.

Folds constants, removes what no output needs, sorts nodes, changes input shapes and outputs, and bounds sizes that are known
only at run time.
"""

from __future__ import annotations

from typing import Any

from trtops import ops
from trtops.cli import groups, surgery
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "cleaning",
        (
            flag("--fold-constants", "compute what does not depend on inputs"),
            flag("--num-passes --num-const-fold-passes N", "most passes (default: until nothing folds)"),
            flag(
                "--partitioning CHOICE",
                "how to treat nodes that cannot be folded",
                choices=("basic", "recursive"),
                idle="a node that cannot be folded never prevents others from being folded",
            ),
            flag("--no-fold-shapes", "do not fold shapes"),
            flag("--no-per-pass-shape-inference", "do not infer shapes between passes"),
            flag("--fold-size-threshold BYTES", "larger tensors are not folded"),
            flag("--cleanup", "remove nodes and weights that no output needs"),
            flag("--toposort", "sort nodes in execution order"),
            flag(
                "--override-input-shapes --override-inputs NAME:[DIMS]+",
                "other shapes of inputs",
                to="input_shapes",
            ),
            flag("--set-unbounded-dds-upper-bound [TENSOR:]N+", "bounds of sizes known only at run time"),
            flag("--outputs NAME+", "tensors to use as outputs; 'mark all' for all", to="new_outputs"),
            flag("--exclude-outputs NAME+", "outputs to leave out"),
            flag("--outputs-by-type OP+", "types of nodes whose results become outputs"),
            flag("--no-shape-inference", "infer no shapes"),
            groups.NO_SYMBOLIC_SHAPES,
        ),
    ),
    surgery.OBSERVING,
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
)
EXAMPLES = (
    "trtops surgeon sanitize model.onnx --fold-constants --cleanup -o clean.onnx",
    "trtops surgeon sanitize model.onnx --override-input-shapes x:[8,3,224,224] -o batch8.onnx",
)


def plan(args: Options) -> Job:
    """Return the job."""
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
    return surgery.job(args, "sanitize", config)


def _output_names(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    return ("mark-all",) if list(names) == ["mark", "all"] else tuple(names)
