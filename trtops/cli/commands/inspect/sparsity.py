"""Say which weights of an ONNX model sparse kernels could use, and which are 2:4 sparse already."""

from __future__ import annotations

from trtops.cli import asking, groups, loading
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.script import call

GROUPS = (
    groups.ONNX_MODEL,
    groups.JSON,
    groups.ONNX_LOAD.without("--ignore-external-data"),
    Group(
        groups.ONNX_LOAD.title,
        (
            Flag(
                names=("--ignore-external-data",),
                takes="switch",
                help="",
                refuse="a model's sparsity is that of its weights; leave it out",
            ),
        ),
    ),
)
EXAMPLES = ("trtops inspect sparsity model.onnx",)


def plan(args: Asked) -> asking.Question:
    """The question."""
    model = args.model_file
    if args.external_data_dir or args.fp_to_fp16:
        model = call(loading.ONNX, "onnx_from_path", model, external_data_dir=args.external_data_dir)
        model = call(loading.ONNX, "convert_to_fp16", model) if args.fp_to_fp16 else model
    return asking.Question(call("trtops.ops", "inspect_sparsity", model), bool(args.json))


execute = asking.answer
