"""Report which weights of an ONNX model sparse kernels could use, and which are already 2:4 sparse."""

from __future__ import annotations

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, op_job
from trtops.cli.script import late

GROUPS = (
    groups.ONNX_MODEL,
    groups.JSON,
    groups.ONNX_LOAD.without("--ignore-external-data"),
    Group(
        groups.ONNX_LOAD.title,
        (flag("--ignore-external-data", "", refuse="a model's sparsity is that of its weights; leave it out"),),
    ),
)
EXAMPLES = ("trtops inspect sparsity model.onnx",)


def plan(args: Options) -> Job:
    """Return the job."""
    model = args.model_file
    if args.external_data_dir or args.fp_to_fp16:
        model = late("trtops.backend.onnx.onnx_from_path", model, external_data_dir=args.external_data_dir)
        model = late("trtops.backend.onnx.convert_to_fp16", model) if args.fp_to_fp16 else model
    return op_job(args, "inspect_sparsity", model)
