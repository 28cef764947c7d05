"""Write a script that makes a TensorRT builder config, to be edited.

Pass the script to `trtops run` or `trtops convert` with --trt-config-script. A given model's inputs are filled in.
"""

from __future__ import annotations

from dataclasses import replace

from trtops.cli import groups, loading, templates
from trtops.cli.flags import Group, Options
from trtops.cli.jobs import Job
from trtops.cli.script import Source

_INPUTS_ONLY = "only the inputs of an ONNX model are filled in"
GROUPS = (
    groups.MODEL.without("--model-type"),
    templates.OUTPUT,
    groups.TRT_SHAPES,
    groups.PRECISIONS.without("--fp32"),
    groups.TRT_TACTICS.without("--save-timing-cache"),
    groups.TRT_CONFIG,
    groups.DATA,
    Group("model", (replace(groups.MODEL_TYPE, idle=_INPUTS_ONLY),)),
)
EXAMPLES = (
    "trtops template trt-config --fp16 --workspace 1G -o config.py",
    "trtops template trt-config model.onnx -o config.py",
)


def plan(args: Options) -> Job:
    """Return the job."""
    return templates.job(args, "trt-config", GROUPS, _script_text)


def _script_text(args: Options) -> str:
    source = Source()
    args.fp32 = None
    config = source.expression(loading.builder_config(args))
    source.use("trtops", "func")
    source.add(f"\n\n@func.extend({config})")
    source.add("def load_config(config):")
    source.add('    """Change the builder config here with TensorRT\'s API; no return value is needed."""')
    return source.text("A TensorRT builder config, to be edited.")
