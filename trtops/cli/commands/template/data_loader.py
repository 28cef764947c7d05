"""Write a script that makes input data, for --data-loader-script; of a model that is given, the inputs are filled in."""

from __future__ import annotations

from trtops.cli import groups, templates
from trtops.cli.flags import Asked

GROUPS = (groups.MODEL.without("--input-shapes", "--model-type"), templates.OUTPUT)
EXAMPLES = ("trtops template data-loader model.onnx -o data_loader.py",)


def plan(args: Asked) -> templates.Plan:
    """What the options stand for."""
    return templates.plan(args, "data-loader", GROUPS, lambda args: "")


execute = templates.execute
