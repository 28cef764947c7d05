"""Count the places in a model where plugins fit."""

from __future__ import annotations

from trtops.cli.commands.plugin import match as plugin_match
from trtops.cli.flags import Asked, Group

GROUPS = (*plugin_match.MODEL, Group("plugins", (plugin_match.FOLDER, *plugin_match.CHOOSING)))
EXAMPLES = ("trtops plugin list model.onnx --plugin-dir plugins",)


def plan(args: Asked) -> plugin_match.Plan:
    """What the options stand for."""
    return plugin_match.plan_of(args, None)


execute = plugin_match.execute
