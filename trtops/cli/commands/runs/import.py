"""Make runs of what other tools left: trtexec, Polygraphy, ONNX Runtime's profiler, Model Navigator, ModelOpt.

What a file is is told by its content. Each run says what it lacks beside a run of ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtops import ops
from trtops.backend.onnx.model import Model
from trtops.cli import groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say_json, say_result

GROUPS = (
    Group(
        "files",
        (
            Flag(
                names=("files",),
                takes="many",
                shown="FILE",
                help="JSON of trtexec (--exportTimes, --exportProfile, --exportLayerInfo), results and replays of Polygraphy, profiles of "
                "ONNX Runtime, status.yaml of Model Navigator, hf_quant_config.json of ModelOpt",
            ),
            Flag(names=("--model",), shown="FILE", help="the ONNX model that they are of, by which its runs are found"),
        ),
    ),
    groups.TRACKING,
    groups.JSON,
)  # fmt: skip
EXAMPLES = (
    "trtops runs import times.json profile.json layers.json --experiment resnet50",
    "trtops runs import outputs.json --model model.onnx",
)


@dataclass(frozen=True)
class Plan:
    """What to import.

    Attributes:
        files: The files.
        model: The model that they are of.
        experiment: Where to remember them.
        store: Where the memory is.
        json: Whether to print JSON.
    """

    files: tuple[str, ...]
    model: str | None
    experiment: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(tuple(args.files), args.model, args.experiment, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Import, and print."""
    digest = None if plan.model is None else Model.load(plan.model).info.sha256
    result = ops.import_results(
        plan.files, tracker=memory.opened(plan.store), experiment=plan.experiment, model_sha256=digest
    )
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0
