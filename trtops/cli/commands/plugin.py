"""The commands of ``trtops plugin``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trtops import ops
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Command, Job
from trtops.cli.logs import say
from trtops.cli.script import loaded
from trtops.tables import table

_UNUSED = "patterns are searched in the model, which is not run"
_IDLE = (replace(each, idle=_UNUSED, convert=str, usual="") for each in (groups.INPUT_SHAPES, *groups.DATA.flags))
_MODEL = (
    Group("model", (*groups.ONNX_MODEL.flags, groups.MODEL_TYPE)),
    *groups.ONNX,
    Group(groups.DATA.title, tuple(_IDLE)),
)
_FOLDER = flag("--plugin-dir FOLDER", "the folder with the plugins' folders, each with a pattern.py", required=True)
_FINDING = (
    _FOLDER,
    flag("--include PLUGIN+", "only these plugins"),
    flag("--exclude PLUGIN+", "all but these plugins"),
)
_EXAMPLES = (
    "trtops plugin match model.onnx --plugin-dir plugins -o places.yaml",
    "trtops plugin replace model.onnx --plugin-dir plugins --config places.yaml -o replaced.onnx",
)


def _model(args: Options) -> Any:
    """Return the model: its path, or the loader that changes it."""
    if args.model_type not in (None, "onnx"):
        raise UsageError(f"--model-type {args.model_type}: patterns are searched in ONNX models; convert it first")
    return loading.onnx_model(args.but(model_type="onnx")) if loading.wants_onnx_changes(args) else args.model_file


def _match_job(args: Options, output: str | None) -> Job:
    if args.include and args.exclude:
        raise UsageError("--include and --exclude exclude each other")
    plugins = {"include": tuple(args.include or ()), "exclude": tuple(args.exclude or ())}
    return Job(call=_match, args=(_model(args), args.plugin_dir, plugins, output))


def _match(model: Any, folder: str, plugins: dict[str, Any], output: str | None) -> int:
    matches = ops.match_plugins(loaded(model), folder, **plugins)
    say(table(("plugin", "node", "places"), ((m.name, m.op, str(len(m.places))) for m in matches)))
    if output is not None:
        ops.write_matches(matches, output)
        say(f"Wrote {output}")
    return 0


def _replace_job(args: Options) -> Job:
    model = Path(args.model_file)
    config = args.config or str(model.with_name("config.yaml"))
    output = args.output or str(model.with_name("replaced.onnx"))
    return Job(call=_replace, args=(_model(args), args.plugin_dir, config, output, loading.save_config(args)))


def _replace(model: Any, folder: str, config: str, output: str, save_as: Any) -> int:
    result = ops.replace_plugins(loaded(model), output, ops.read_matches(config), folder, save_as=save_as)
    say(result.text())
    return 0


COMMANDS = {
    "list": Command(
        lambda args: _match_job(args, None),
        (*_MODEL, Group("plugins", _FINDING)),
        ("trtops plugin list model.onnx --plugin-dir plugins",),
        "Count the places in a model where plugins fit.",
    ),
    "match": Command(
        lambda args: _match_job(args, args.output or str(Path(args.model_file).with_name("config.yaml"))),
        (
            *_MODEL,
            Group(
                "plugins",
                (
                    *_FINDING,
                    flag(
                        "-o --output FILE", "file for the places (default: config.yaml next to the model)", to="output"
                    ),
                ),
            ),
        ),
        _EXAMPLES,
        "Find the places in a model where plugins fit, and write them to a file for `trtops plugin replace`.",
    ),
    "replace": Command(
        _replace_job,
        (
            *_MODEL,
            Group(
                "plugins",
                (
                    _FOLDER,
                    flag("--config FILE", "the places (default: config.yaml next to the model)"),
                    flag("-o --output FILE", "the new model (default: replaced.onnx next to the model)", to="output"),
                ),
            ),
            groups.SAVE_AS,
        ),
        _EXAMPLES,
        "Replace subgraphs of a model by plugins, at the places that `trtops plugin match` wrote.",
    ),
}
