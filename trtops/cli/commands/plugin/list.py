"""Count the places in a model where plugins fit."""

from __future__ import annotations

from trtops.cli.commands.plugin import match
from trtops.cli.flags import Group, Options
from trtops.cli.jobs import Job

GROUPS = (*match.MODEL, Group("plugins", (match.FOLDER, *match.CHOOSING)))
EXAMPLES = ("trtops plugin list model.onnx --plugin-dir plugins",)


def plan(args: Options) -> Job:
    """Return the job."""
    return match.job(args, None)
