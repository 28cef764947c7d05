"""Find everything that is wrong with an ONNX model, node by node, in one go. Exits with 1 if something is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.cli import groups, loading
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_json
from trtops.cli.script import Call, Maker, loaded
from trtops.metadata import TensorMetadata

if TYPE_CHECKING:
    from trtops.ops.model.lint import LintConfig

_ALONE = "each node is evaluated as it is, on the CPU, with every optimization off"

GROUPS = (
    groups.ONNX_MODEL,
    Group("shapes", groups.MODEL.flags[2:]),
    Group(
        "report",
        (Flag(names=("-o", "--output"), to="output", shown="FILE", help="where to write the report, as JSON"),),
    ),
    groups.JSON,
    groups.ONNX_LOAD,
    groups.DATA.without("--iterations"),
    groups.ONE_FEED,
    Group(
        groups.PROVIDERS.title,
        tuple(
            Flag(names=f.names, help=f.help, takes=f.takes, shown=f.shown, idle=_ALONE) for f in groups.PROVIDERS.flags
        ),
    ),
)
EXAMPLES = ("trtops check lint model.onnx", "trtops check lint model.onnx --input-shapes x:[4,3,8,8] -o report.json")


@dataclass(frozen=True)
class Plan:
    """What to check.

    Attributes:
        model: The model, or what makes it.
        config: The op's config.
        data: Makes inputs.
        json: Whether to print JSON.
    """

    model: str | Call
    config: LintConfig
    data: Call | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    args.iterations = None
    onnx = args.but(
        model_type="onnx",
        onnx_outputs=None,
        onnx_exclude_outputs=None,
        onnx_outputs_by_type=None,
        shape_inference=None,
    )
    model = loading.onnx_model(onnx) if loading.wants_onnx_changes(args) else args.model_file
    loader = loading.data_loader(args)
    made_up = loader is not None and loader.name == "DataLoader"
    own = [
        f
        for f in ("seed", "val_range", "int_min", "int_max", "float_min", "float_max", "data_loader_backend_module")
        if getattr(args, f) is not None
    ]
    shapes = {} if own else loading.input_shapes(args) or {}
    data = None if made_up and not own else loader
    return Plan(model, ops.LintConfig(input_shapes=shapes, output=args.output), data, bool(args.json))


def execute(plan: Plan) -> int:
    """Check, and print."""
    model = loaded(plan.model)
    result = ops.lint(model, plan.config, feed=_first_feed(Maker()(plan.data), model))
    if plan.json:
        say_json(result.to_lint_json())
    else:
        say(result.text())
    return 0 if result.ok else 1


def _first_feed(loader: Any, model: Any) -> Any:
    if loader is None:
        return None
    if hasattr(loader, "input_metadata"):
        loader.input_metadata = TensorMetadata.of(ops.open_model(model).info.inputs)
    return next(iter(loader))
