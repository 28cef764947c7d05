"""Write a script that makes input data, for --data-loader-script; of a model that is given, the inputs are filled in."""

from __future__ import annotations

import argparse

from trtops.cli import groups, templates

GROUPS = (groups.MODEL.without("--input-shapes", "--model-type"), templates.OUTPUT)
EXAMPLES = ("trtops template data-loader model.onnx -o data_loader.py",)


def plan(args: argparse.Namespace) -> templates.Plan:
    """What the options stand for."""
    return templates.plan(args, "data-loader", GROUPS, lambda args: "")


execute = templates.execute
