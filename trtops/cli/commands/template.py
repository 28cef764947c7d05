"""The commands of ``trtops template``: each writes an editable script for the options."""

from dataclasses import replace
from pathlib import Path

from trtops.backend import trt
from trtops.backend.common import save_bytes
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command
from trtops.cli.logs import say
from trtops.cli.script import Source, given, quoted

_OUTPUT = Group("script", flag("-o --output FILE", "where to write it", required=True))
_SHAPES = "the script gets the unchanged model; change shapes with `trtops surgeon sanitize --override-input-shapes`"


def _job(text: str, output: str) -> Job:
    """Return the job for writing a script."""

    def run() -> int:
        save_bytes(text.encode(), output)
        say(f"Wrote {output}")
        return 0

    return run


@command(
    groups.ONNX_MODEL,
    _OUTPUT,
    *groups.ONNX,
    Group("shapes", groups.INPUT_SHAPES).idle(_SHAPES),
    examples=("trtops template onnx-gs model.onnx -o change.py",),
)
def onnx_gs(args: Options) -> Job:
    """Write a script that changes an ONNX model with ONNX-GraphSurgeon and saves it."""
    source = Source()
    model = source.expression(loading.onnx_model(args.but(model_type=None)))
    source.use("onnx_graphsurgeon", "export_onnx")
    source.use("trtops.backend.onnx", "gs_from_onnx", "save_onnx")
    path = Path(args.model_file)
    changed = path.with_stem(f"{path.stem}_updated")
    source.lines += [
        '\n\nif __name__ == "__main__":',
        f"    graph = gs_from_onnx({model})",
        "    # Change the graph here.",
        "    graph.cleanup().toposort()",
        f"    save_onnx(export_onnx(graph), {quoted(str(changed))})",
    ]
    return _job(source.text(f"Changes an ONNX model, and saves it as {changed}."), args.output)


@command(
    groups.MODEL.without("--model-type", "--input-dtypes"),
    _OUTPUT,
    groups.TRT_SHAPES,
    groups.PRECISIONS.without("--fp32"),
    groups.TRT_TACTICS.without("--save-timing-cache"),
    groups.TRT_CONFIG,
    groups.DATA,
    Group("model", replace(groups.MODEL_TYPE, idle="the model is not read")),
    examples=("trtops template trt-config --fp16 --workspace 1G -o config.py",),
)
def trt_config(args: Options) -> Job:
    """Write a script that makes a TensorRT builder config, to be edited.

    Pass it to `trtops run` or `trtops convert` with --trt-config-script. The model is not read.
    """
    source = Source()
    args.fp32 = None
    if not args.int8 or args.trt_config_script is not None:
        args.ignore(groups.DATA)
    config = source.expression(loading.builder_config(args))
    source.use("trtops", "func")
    source.lines += [
        f"\n\n@func.extend({config})",
        "def load_config(config):",
        '    """Change the builder config here with TensorRT\'s API; no return value is needed."""',
    ]
    return _job(source.text("A TensorRT builder config, to be edited."), args.output)


@command(
    groups.MODEL.without("--input-shapes", "--input-dtypes"),
    _OUTPUT,
    groups.TRT_NETWORK,
    groups.TRT_OUTPUTS,
    groups.TRT_PARSE,
    *groups.ONNX,
    groups.TENSORFLOW,
    examples=("trtops template trt-network model.onnx -o network.py", "trtops template trt-network -o empty.py"),
)
def trt_network(args: Options) -> Job:
    """Write a script that defines a TensorRT network, or parses a model into one to be changed.

    Pass it instead of a model to `trtops run`, `trtops convert` or `trtops inspect model`.
    """
    source = Source()
    if args.model_file is None:
        options = args.pick("strongly_typed", "mark_unfused_tensors_as_debug_tensors")
        network = source.expression(trt.CreateNetwork(**given(**options)))
    else:
        network = source.expression(loading.network(args))
    source.use("trtops", "func")
    source.lines += [
        f"\n\n@func.extend({network})",
        f"def load_network(builder, network{', parser' if args.model_file else ''}):",
        '    """Change the network here with TensorRT\'s API; no return value is needed."""',
    ]
    return _job(source.text("A TensorRT network, to be changed."), args.output)
