"""Put plugins' nodes into a model, at the places that `trtops plugin match` wrote down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import groups, surgery
from trtops.cli.commands.plugin import match as plugin_match
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say
from trtops.cli.script import Call, loaded

if TYPE_CHECKING:
    from trtops.ops.model.model_files import SaveConfig

GROUPS = (
    *plugin_match.MODEL,
    Group(
        "plugins",
        (
            plugin_match.FOLDER,
            Flag(names=("--config",), shown="FILE", help="the places (default: config.yaml beside the model)"),
            Flag(
                names=("-o", "--output"),
                to="output",
                shown="FILE",
                help="where to write the model (default: replaced.onnx beside it)",
            ),
        ),
    ),
    Group(groups.ONNX_SAVE.title, groups.ONNX_SAVE.flags[1:]),
)
EXAMPLES = plugin_match.EXAMPLES


@dataclass(frozen=True)
class Plan:
    """What to replace.

    Attributes:
        model: The model, or what makes it.
        folder: Where the plugins are.
        config: The file with the places.
        output: Where to write the model.
        save_as: Where its weights go.
    """

    model: str | Call
    folder: str
    config: str
    output: str
    save_as: SaveConfig


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    beside = Path(args.model_file)
    return Plan(
        model=plugin_match.model(args),
        folder=args.plugin_dir,
        config=args.config or str(beside.with_name("config.yaml")),
        output=args.output or str(beside.with_name("replaced.onnx")),
        save_as=surgery.save_config(args),
    )


def execute(plan: Plan) -> int:
    """Replace, and print."""
    matches = ops.read_matches(plan.config)
    result = ops.replace_plugins(loaded(plan.model), plan.output, matches, plan.folder, save_as=plan.save_as)
    say(result.text())
    return 0
