"""The commands of ``trtops plugin``."""

from pathlib import Path
from typing import Any

from trtops import ops
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.logs import say
from trtops.cli.script import call, product
from trtops.tables import table

_MODEL = (
    Group("model", groups.ONNX_MODEL, groups.MODEL_TYPE),
    *groups.ONNX,
    Group(groups.DATA.title, groups.INPUT_SHAPES, groups.DATA).idle(
        "patterns are searched in the model, which is not run"
    ),
)
_FOLDER = flag("--plugin-dir FOLDER", "the folder with the plugins' folders, each with a pattern.py", required=True)
_FINDING = Group(
    "plugins",
    _FOLDER,
    flag("--include PLUGIN+", "only these plugins"),
    flag("--exclude PLUGIN+", "all but these plugins"),
)
_EXAMPLES = (
    "trtops plugin match model.onnx --plugin-dir plugins -o places.yaml",
    "trtops plugin replace model.onnx --plugin-dir plugins --config places.yaml -o replaced.onnx",
)


def _model(args: Options) -> Any:
    """Return the model: its path, or the loader of the changed one."""
    if args.model_type not in (None, "onnx"):
        raise UsageError(f"--model-type {args.model_type}: patterns are searched in ONNX models; convert it first")
    return loading.changed_model(args)


def _match(args: Options, output: str | None) -> Job:
    if args.include and args.exclude:
        raise UsageError("--include and --exclude exclude each other")
    model, folder = _model(args), args.plugin_dir
    plugins = {"include": tuple(args.include or ()), "exclude": tuple(args.exclude or ())}

    def run() -> int:
        matches = ops.match_plugins(product(model), folder, **plugins)
        say(table(("plugin", "node", "places"), ((m.name, m.op, str(len(m.places))) for m in matches)))
        match_counts = {m.name: len(m.places) for m in matches}
        say(f"[I] the following plugins matched:\n[I] {match_counts}")  # Polygraphy's lines, which scripts search for
        if output is not None:
            ops.write_matches(matches, output)
            say(f"Wrote {output}")
        return 0

    return run


@command(*_MODEL, _FINDING, examples=("trtops plugin list model.onnx --plugin-dir plugins",))
def list_(args: Options) -> Job:
    """Count the places in a model where plugins fit."""
    return _match(args, None)


@command(
    *_MODEL,
    _FINDING,
    Group("plugins", flag("-o --output FILE", "file for the places (default: config.yaml next to the model)")),
    examples=_EXAMPLES,
)
def match(args: Options) -> Job:
    """Find the places in a model where plugins fit, and write them to a file for `trtops plugin replace`."""
    return _match(args, args.output or str(Path(args.model_file).with_name("config.yaml")))


@command(
    *_MODEL,
    Group(
        "plugins",
        _FOLDER,
        flag("--config FILE", "the places (default: config.yaml next to the model)"),
        flag("-o --output FILE", "the new model (default: replaced.onnx next to the model)"),
    ),
    groups.SAVE_AS,
    examples=_EXAMPLES,
)
def replace(args: Options) -> Job:
    """Replace subgraphs of a model by plugins, at the places that `trtops plugin match` wrote."""
    folder = Path(args.model_file).parent
    return op_job(
        args,
        "replace_plugins",
        _model(args),
        args.output or str(folder / "replaced.onnx"),
        call(ops.read_matches, args.config or str(folder / "config.yaml")),
        args.plugin_dir,
        save_as=loading.save_config(args),
    )
