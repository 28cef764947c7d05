"""Say whether a back end takes every node of a model, and which not. Exits with 1 if it does not."""

from __future__ import annotations

from dataclasses import dataclass

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Asked, Group
from trtops.cli.logs import say, say_json

GROUPS = (
    groups.ONNX_MODEL,
    Group("back ends, TensorRT unless named", tuple(f for f in configs.BACKEND.flags if f.dest == "backend")),
    groups.JSON,
)
EXAMPLES = ("trtops check compatibility model.onnx --onnxrt", "trtops check compatibility model.onnx --trt")


@dataclass(frozen=True)
class Plan:
    """What to ask.

    Attributes:
        model: The model.
        backend: Who is asked.
        json: Whether to print JSON.
    """

    model: str
    backend: str
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(args.model_file, args.backend or "tensorrt", bool(args.json))


def execute(plan: Plan) -> int:
    """Ask, and print."""
    report = ops.capability(plan.model, ops.CapabilityConfig(backend=plan.backend, partition=False))  # type: ignore[arg-type]
    if plan.json:
        say_json(report.to_dict())
    else:
        say(report.text())
    return 0 if report.supported else 1
