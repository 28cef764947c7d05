"""Write a script that defines a TensorRT network, or parses a model into one to be changed.

Pass the script instead of a model to `trtops run`, `trtops convert` or `trtops inspect model`.
"""

from __future__ import annotations

from trtops.backend import trt
from trtops.cli import groups, loading, templates
from trtops.cli.flags import Options
from trtops.cli.jobs import Job
from trtops.cli.script import Source, given

GROUPS = (
    groups.MODEL.without("--input-shapes"),
    templates.OUTPUT,
    groups.TRT_NETWORK,
    groups.TRT_OUTPUTS,
    groups.TRT_PARSE,
    groups.ONNX_LOAD,
    groups.ONNX_OUTPUTS,
    groups.ONNX_SHAPE,
    groups.TENSORFLOW,
)
EXAMPLES = ("trtops template trt-network model.onnx -o network.py", "trtops template trt-network -o empty.py")


def plan(args: Options) -> Job:
    """Return the job."""
    return templates.job(args, "trt-network", GROUPS, _script_text)


def _script_text(args: Options) -> str:
    source = Source()
    if args.model_file is None:
        names = ("strongly_typed", "mark_unfused_tensors_as_debug_tensors")
        network = source.expression(trt.CreateNetwork(**given(**{name: getattr(args, name) for name in names})))
    else:
        network = source.expression(loading.network(args))
    source.use("trtops", "func")
    source.add(f"\n\n@func.extend({network})")
    source.add(f"def load_network(builder, network{', parser' if args.model_file else ''}):")
    source.add('    """Change the network here with TensorRT\'s API; no return value is needed."""')
    return source.text("A TensorRT network, to be changed.")
