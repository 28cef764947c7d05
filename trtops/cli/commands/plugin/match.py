"""Find the places in a model where plugins fit, and write them down, for `trtops plugin replace`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtops import ops
from trtops.cli import groups, loading
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say
from trtops.cli.script import Call, loaded
from trtops.tables import table

FOLDER = Flag(
    names=("--plugin-dir",),
    required=True,
    shown="FOLDER",
    help="the folder with the plugins' folders, each with a pattern.py",
)
CHOOSING = (
    Flag(names=("--include",), takes="many", shown="PLUGIN", help="plugins to look for, no others"),
    Flag(names=("--exclude",), takes="many", shown="PLUGIN", help="plugins not to look for"),
)
_UNUSED = "patterns are looked for in the model, which is not run"
MODEL = (
    groups.ONNX_MODEL,
    groups.ONNX_LOAD,
    groups.ONNX_SHAPE,
    groups.ONNX_OUTPUTS,
    Group("model", tuple(f for f in groups.MODEL.flags if f.dest == "model_type")),
    Group(
        groups.DATA.title,
        tuple(
            Flag(names=f.names, to=f.to, takes=f.takes, shown=f.shown, choices=f.choices, help=f.help, idle=_UNUSED)
            for f in (*groups.MODEL.flags[2:], *groups.DATA.flags)
        ),
    ),
)
"""The model, and what else commands for plugins take."""

GROUPS = (
    *MODEL,
    Group(
        "plugins",
        (
            FOLDER,
            *CHOOSING,
            Flag(
                names=("-o", "--output"),
                to="output",
                shown="FILE",
                help="where to write the places (default: config.yaml beside the model)",
            ),
        ),
    ),
)
EXAMPLES = (
    "trtops plugin match model.onnx --plugin-dir plugins -o places.yaml",
    "trtops plugin replace model.onnx --plugin-dir plugins --config places.yaml -o replaced.onnx",
)


@dataclass(frozen=True)
class Plan:
    """What to look for.

    Attributes:
        model: The model, or what makes it.
        folder: Where the plugins are.
        include: Plugins to look for.
        exclude: Plugins to leave out.
        output: Where to write the places; None writes none.
    """

    model: str | Call
    folder: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    output: str | None


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return plan_of(args, args.output or str(Path(args.model_file).with_name("config.yaml")))


def plan_of(args: Asked, output: str | None) -> Plan:
    """The same, with the places going there."""
    if args.include and args.exclude:
        raise UsageError("--include and --exclude exclude each other")
    return Plan(model(args), args.plugin_dir, tuple(args.include or ()), tuple(args.exclude or ()), output)


def model(args: Asked) -> str | Call:
    """The model: its path where it is taken as it is."""
    if args.model_type not in (None, "onnx"):
        raise UsageError(f"--model-type {args.model_type}: patterns are looked for in ONNX models; convert it first")
    return loading.onnx_model(args.but(model_type="onnx")) if loading.wants_onnx_changes(args) else args.model_file


def execute(plan: Plan) -> int:
    """Look, write and print."""
    matches = ops.match_plugins(loaded(plan.model), plan.folder, include=plan.include, exclude=plan.exclude)
    say(table(("plugin", "node", "places"), ((m.name, m.op, str(len(m.places))) for m in matches)))
    if plan.output is not None:
        ops.write_matches(matches, plan.output)
        say(f"Wrote {plan.output}")
    return 0
