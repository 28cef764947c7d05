"""The commands of ``trtops template``: each writes a script of the op, or one made from the options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trtops import ops
from trtops.backend import trt
from trtops.backend.common import save_bytes
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Command, Job
from trtops.cli.logs import say
from trtops.cli.script import Source, given, quoted
from trtops.ops.model.template import updated_path

OUTPUT = Group("script", (flag("-o --output FILE", "where to write it", to="output", required=True),))
_SHAPES = "the script gets the unchanged model; change shapes with `trtops surgeon sanitize --override-input-shapes`"


def _plan(kind: str, text: Callable[[Options], str]) -> Callable[[Options], Job]:
    """Return the plan that writes a script of the options if any is given besides model and output, else the op's."""

    def plan(args: Options) -> Job:
        flags = [flag for group in COMMANDS[kind].groups for flag in group.flags if not flag.idle]
        options = [flag for flag in flags if flag.dest not in ("model_file", "output")]
        asked = any(args.peek(flag.dest) not in (None, flag.default) for flag in options)
        model = getattr(args, "model_file", None)
        return Job(call=_write, args=(kind, model, text(args) if asked else None, args.output))

    return plan


def _write(kind: Any, model: str | None, text: str | None, output: str) -> int:
    if text is None:
        ops.template(kind, output, model=model)
    else:
        save_bytes(text.encode(), output)
    say(f"Wrote {output}")
    return 0


def _surgeon_text(args: Options) -> str:
    source = Source()
    model = source.expression(loading.onnx_model(args.but(model_type=None)))
    source.use("onnx_graphsurgeon", "export_onnx")
    source.use("trtops.backend.onnx", "gs_from_onnx", "save_onnx")
    changed = updated_path(args.model_file)
    source.lines += [
        '\n\nif __name__ == "__main__":',
        f"    graph = gs_from_onnx({model})",
        "    # Change the graph here.",
        "    graph.cleanup().toposort()",
        f"    save_onnx(export_onnx(graph), {quoted(str(changed))})",
    ]
    return source.text(f"Changes an ONNX model, and saves it as {changed}.")


def _config_text(args: Options) -> str:
    source = Source()
    args.fp32 = None
    config = source.expression(loading.builder_config(args))
    source.use("trtops", "func")
    source.lines += [
        f"\n\n@func.extend({config})",
        "def load_config(config):",
        '    """Change the builder config here with TensorRT\'s API; no return value is needed."""',
    ]
    return source.text("A TensorRT builder config, to be edited.")


def _network_text(args: Options) -> str:
    source = Source()
    if args.model_file is None:
        names = ("strongly_typed", "mark_unfused_tensors_as_debug_tensors")
        network = source.expression(trt.CreateNetwork(**given(**{name: getattr(args, name) for name in names})))
    else:
        network = source.expression(loading.network(args))
    source.use("trtops", "func")
    source.lines += [
        f"\n\n@func.extend({network})",
        f"def load_network(builder, network{', parser' if args.model_file else ''}):",
        '    """Change the network here with TensorRT\'s API; no return value is needed."""',
    ]
    return source.text("A TensorRT network, to be changed.")


COMMANDS = {
    "data-loader": Command(
        _plan("data-loader", str),  # never called: there are no other options
        (groups.MODEL.without("--input-shapes", "--model-type"), OUTPUT),
        ("trtops template data-loader model.onnx -o data_loader.py",),
        "Write a script that makes input data, for --data-loader-script; a given model's inputs are filled in.",
    ),
    "onnx-gs": Command(
        _plan("onnx-gs", _surgeon_text),
        (
            groups.ONNX_MODEL,
            OUTPUT,
            *groups.ONNX,
            Group("shapes", (replace(groups.INPUT_SHAPES, idle=_SHAPES, convert=str),)),
        ),
        ("trtops template onnx-gs model.onnx -o change.py",),
        "Write a script that changes an ONNX model with ONNX-GraphSurgeon and saves it.",
    ),
    "trt-config": Command(
        _plan("trt-config", _config_text),
        (
            groups.MODEL.without("--model-type"),
            OUTPUT,
            groups.TRT_SHAPES,
            groups.PRECISIONS.without("--fp32"),
            groups.TRT_TACTICS.without("--save-timing-cache"),
            groups.TRT_CONFIG,
            groups.DATA,
            Group("model", (replace(groups.MODEL_TYPE, idle="only the inputs of an ONNX model are filled in"),)),
        ),
        (
            "trtops template trt-config --fp16 --workspace 1G -o config.py",
            "trtops template trt-config model.onnx -o config.py",
        ),
        "Write a script that makes a TensorRT builder config, to be edited. Pass it to `trtops run` or `trtops "
        "convert` with "
        "--trt-config-script. A given model's inputs are filled in.",
    ),
    "trt-network": Command(
        _plan("trt-network", _network_text),
        (
            groups.MODEL.without("--input-shapes"),
            OUTPUT,
            groups.TRT_NETWORK,
            groups.TRT_OUTPUTS,
            groups.TRT_PARSE,
            *groups.ONNX,
            groups.TENSORFLOW,
        ),
        ("trtops template trt-network model.onnx -o network.py", "trtops template trt-network -o empty.py"),
        "Write a script that defines a TensorRT network, or parses a model into one to be changed. Pass it instead "
        "of a model "
        "to `trtops run`, `trtops convert` or `trtops inspect model`.",
    ),
}
