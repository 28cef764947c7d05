"""Replace subgraphs of a model by plugins, at the places that `trtops plugin match` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtops import ops
from trtops.cli import groups, surgery
from trtops.cli.commands.plugin import match
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job
from trtops.cli.logs import say
from trtops.cli.script import loaded

GROUPS = (
    *match.MODEL,
    Group(
        "plugins",
        (
            match.FOLDER,
            flag("--config FILE", "the places (default: config.yaml next to the model)"),
            flag("-o --output FILE", "where to write the model (default: replaced.onnx next to it)", to="output"),
        ),
    ),
    groups.SAVE_AS,
)
EXAMPLES = match.EXAMPLES


def plan(args: Options) -> Job:
    """Return the job."""
    model = Path(args.model_file)
    config = args.config or str(model.with_name("config.yaml"))
    output = args.output or str(model.with_name("replaced.onnx"))
    return Job(call=_replace, args=(match.model(args), args.plugin_dir, config, output, surgery.save_config(args)))


def _replace(model: Any, folder: str, config: str, output: str, save_as: Any) -> int:
    result = ops.replace_plugins(loaded(model), output, ops.read_matches(config), folder, save_as=save_as)
    say(result.text())
    return 0
