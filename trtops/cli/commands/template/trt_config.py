"""Write a script that makes a TensorRT builder config, to be changed.

Give the script to `trtops run` or `trtops convert` by --trt-config-script. Of a model that is given, the inputs are
filled in.
"""

from __future__ import annotations

from trtops.cli import groups, loading, templates
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.script import Source

GROUPS = (
    groups.MODEL.without("--model-type"), templates.OUTPUT, groups.TRT_SHAPES, groups.PRECISIONS.without("--fp32"),
    groups.TRT_TACTICS.without("--save-timing-cache"), groups.TRT_CONFIG, groups.DATA,
    Group("model", (Flag(names=("--model-type",), shown="TYPE", help="what the model is", idle="of a model only its inputs are filled in, and only of an ONNX file"),)),
)  # fmt: skip
EXAMPLES = (
    "trtops template trt-config --fp16 --workspace 1G -o config.py",
    "trtops template trt-config model.onnx -o config.py",
)


def plan(args: Asked) -> templates.Plan:
    """What the options stand for."""
    return templates.plan(args, "trt-config", GROUPS, _script_text)


def _script_text(args: Asked) -> str:
    args.fp32 = None
    source = Source()
    config = source.expression(loading.builder_config(args))
    source.use("trtops", "func")
    source.add(f"\n\n@func.extend({config})")
    source.add("def load_config(config):")
    source.add('    """Change the builder config here, by TensorRT\'s own API; nothing need be returned."""')
    return source.text("A TensorRT builder config, to be changed.")


execute = templates.execute
