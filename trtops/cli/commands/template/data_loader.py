"""Write a script that makes input data, for --data-loader-script; a given model's inputs are filled in."""

from __future__ import annotations

from trtops.cli import groups, templates
from trtops.cli.flags import Options
from trtops.cli.jobs import Job

GROUPS = (groups.MODEL.without("--input-shapes", "--model-type"), templates.OUTPUT)
EXAMPLES = ("trtops template data-loader model.onnx -o data_loader.py",)


def plan(args: Options) -> Job:
    """Return the job."""
    return templates.job(args, "data-loader", GROUPS, str)  # never called: there are no other options
