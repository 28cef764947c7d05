"""Find out where an engine goes wrong.

Every tensor of the model is compared with the model itself, in the order of execution. Exits with 1 if outputs differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_ending, say_json

if TYPE_CHECKING:
    from trtops.ops.search.accuracy import AccuracyConfig
    from trtops.ops.search.accuracy_sides import Emulated
    from trtops.spec import BuildConfig

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "looking",
        (
            Flag(names=("--emulate",), usual="an engine", choices=("fp16", "bf16"), help="in place of an engine: 16 bit, rounded on the CPU as a GPU rounds"),
            Flag(names=("--window",), usual="192M", convert=int, shown="BYTES", help="how much is held at a time"),
        ),
    ),
    groups.JSON, groups.TRACKING, configs.BACKEND,
    groups.STATISTICS,
    groups.SOURCE, groups.SPEC,
)  # fmt: skip
EXAMPLES = (
    "trtops debug accuracy model.onnx --trt --fp16 --load-inputs inputs.json",
    "trtops debug accuracy model.onnx --emulate fp16",
    "trtops debug accuracy model.onnx --onnxrt --allow-approximation",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to look at.

    Attributes:
        model: The model.
        actual: What is under test: how an engine is built, or an emulated precision.
        config: The op's config.
        experiment: Where to remember it.
        store: Where the memory is.
        json: Whether to print JSON.
    """

    model: str
    actual: BuildConfig | Emulated
    config: AccuracyConfig
    experiment: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    config = ops.AccuracyConfig(
        tolerances=configs.tolerances(args),
        **configs.data_options(args),
        **configs.given(window_bytes=args.window),
    )
    return Plan(
        model=args.model_file,
        actual=(ops.Emulated(args.emulate) if args.emulate else configs.build_config(args, args.backend or "tensorrt")),
        config=config,
        experiment=args.experiment,
        store=args.store if args.experiment else None,
        json=bool(args.json),
    )


def execute(plan: Plan) -> int:
    """Look, and print."""
    result = ops.accuracy(
        plan.model,
        plan.actual,
        plan.config,
        tracker=memory.kept(plan.experiment, plan.store),
        experiment=plan.experiment,
    )
    if plan.json:
        say_json(result.to_dict())
    else:
        say(result.text())
        say_ending(result, plan.store)
    return 0 if result.verdict == "good" else 1
