"""Say which nodes of a model a back end takes, and why not the others.

With partitioning the model is cut into parts that are taken and parts that are not. The answer given is exit code 0, as in
Polygraphy; --exit-on-bad asks for 1 where some nodes are not taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import groups, loading, surgery, values
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_json
from trtops.cli.script import Call, loaded

if TYPE_CHECKING:
    from trtops.ops.model.capability import CapabilityConfig

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "capability",
        (
            Flag(
                names=("-o", "--output", "--output-dir"),
                to="output",
                default="trtops_capability_dumps",
                shown="FOLDER",
                help="where to write the report, and the parts",
            ),
            Flag(names=("--with-partitioning",), takes="switch", help="write the parts as models"),
            Flag(
                names=("--onnxrt",),
                takes="switch",
                to="backend",
                value="onnxruntime",
                help="ask ONNX Runtime, not TensorRT",
            ),
            Flag(
                names=("--input-shapes",),
                takes="many",
                convert=values.shape,
                shown="NAME:[DIMS]",
                help="shapes of inputs",
            ),
            Flag(names=("--exit-on-bad",), takes="switch", help="exit with 1 where some nodes are not taken"),
        ),
    ),
    groups.JSON,
    Group(
        "saving parts",
        (
            Flag(
                names=("--save-external-data", "--external-data-path"),
                usual="in the model file",
                takes="optional",
                value="",
                choices=("",),
                shown="",
                help="keep weights beside each part, in <part>.data",
            ),
            *groups.ONNX_SAVE.flags[2:],
        ),
    ),
    groups.ONNX_LOAD,
    groups.ONNX_OUTPUTS,
    groups.ONNX_SHAPE,
)
EXAMPLES = ("trtops inspect capability model.onnx --with-partitioning", "trtops inspect capability model.onnx --onnxrt")


@dataclass(frozen=True)
class Plan:
    """What to ask.

    Attributes:
        model: The model, or what makes it.
        config: The op's config.
        report: The file that the report goes to.
        json: Whether to print JSON.
        exit_on_bad: Whether nodes that are not taken are exit code 1.
    """

    model: str | Call
    config: CapabilityConfig
    report: str
    json: bool
    exit_on_bad: bool = False


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    config = ops.CapabilityConfig(
        backend=args.backend or "tensorrt",
        partition=bool(args.with_partitioning),
        output_dir=args.output if args.with_partitioning else None,
        save_as=surgery.save_config(args) if args.with_partitioning else ops.SaveConfig(),
        input_shapes=loading.input_shapes(args) or {},
    )
    model = loading.onnx_model(args.but(model_type="onnx")) if loading.wants_onnx_changes(args) else args.model_file
    return Plan(model, config, f"{args.output}/results.txt", bool(args.json), bool(args.exit_on_bad))


def execute(plan: Plan) -> int:
    """Ask, write and print."""
    report = ops.capability(loaded(plan.model), plan.config)
    save_bytes(f"{report.text()}\n".encode(), plan.report)
    if plan.json:
        say_json(report.to_dict())
    else:
        say(report.text())
    return 1 if plan.exit_on_bad and not report.supported else 0
