"""Find the places in a model where plugins fit, and write them to a file for `trtops plugin replace`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trtops import ops
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job
from trtops.cli.logs import say
from trtops.cli.script import loaded
from trtops.tables import table

FOLDER = flag("--plugin-dir FOLDER", "the folder with the plugins' folders, each with a pattern.py", required=True)
CHOOSING = (
    flag("--include PLUGIN+", "only these plugins"),
    flag("--exclude PLUGIN+", "all but these plugins"),
)
_UNUSED = "patterns are searched in the model, which is not run"
_IDLE = tuple(replace(each, idle=_UNUSED, convert=str, usual="") for each in (groups.INPUT_SHAPES, *groups.DATA.flags))
MODEL = (
    groups.ONNX_MODEL,
    groups.ONNX_LOAD,
    groups.ONNX_SHAPE,
    groups.ONNX_OUTPUTS,
    Group("model", (groups.MODEL_TYPE,)),
    Group(groups.DATA.title, _IDLE),
)
"""Options of all commands for plugins."""

GROUPS = (
    *MODEL,
    Group(
        "plugins",
        (
            FOLDER,
            *CHOOSING,
            flag("-o --output FILE", "where to write the places (default: config.yaml next to the model)", to="output"),
        ),
    ),
)
EXAMPLES = (
    "trtops plugin match model.onnx --plugin-dir plugins -o places.yaml",
    "trtops plugin replace model.onnx --plugin-dir plugins --config places.yaml -o replaced.onnx",
)


def plan(args: Options) -> Job:
    """Return the job."""
    return job(args, args.output or str(Path(args.model_file).with_name("config.yaml")))


def job(args: Options, output: str | None) -> Job:
    """Return the job that writes the places to a file, if one is given."""
    if args.include and args.exclude:
        raise UsageError("--include and --exclude exclude each other")
    plugins = {"include": tuple(args.include or ()), "exclude": tuple(args.exclude or ())}
    return Job(call=_match, args=(model(args), args.plugin_dir, plugins, output))


def model(args: Options) -> Any:
    """Return the model: its path, or the loader that changes it."""
    if args.model_type not in (None, "onnx"):
        raise UsageError(f"--model-type {args.model_type}: patterns are searched in ONNX models; convert it first")
    return loading.onnx_model(args.but(model_type="onnx")) if loading.wants_onnx_changes(args) else args.model_file


def _match(model: Any, folder: str, plugins: dict[str, Any], output: str | None) -> int:
    matches = ops.match_plugins(loaded(model), folder, **plugins)
    say(table(("plugin", "node", "places"), ((m.name, m.op, str(len(m.places))) for m in matches)))
    if output is not None:
        ops.write_matches(matches, output)
        say(f"Wrote {output}")
    return 0
