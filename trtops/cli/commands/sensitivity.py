"""Measure what each layer costs in INT8, and propose which to keep in higher precision.

It proposes so many that the error budget is met. Exits with 1 if it is not met even so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say_result
from trtops.terminal import progress
from trtops.tracking.ids import RUN_PREFIX

if TYPE_CHECKING:
    from trtops.ops.engines.sensitivity import SensitivityConfig

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "measuring",
        (
            Flag(
                names=("--calibration-cache",),
                required=True,
                shown="FILE",
                help="the ranges: a cache of either format, or run:<id>",
            ),
            Flag(names=("--budget",), usual="0.01", convert=float, help="the relative error that INT8 may make"),
            Flag(names=("--samples",), usual="64", convert=int, shown="N", help="samples to use"),
            Flag(names=("--batch",), usual="as the data comes", convert=int, shown="N", help="samples per feed"),
            Flag(
                names=("--mode",),
                usual="one",
                choices=("one", "rest"),
                help="quantize one layer at a time, or all but one",
            ),
            Flag(names=("--keep",), takes="many", shown="LAYER", help="layers that stay in FP32 whatever they cost"),
        ),
    ),
    groups.TRACKING,
    groups.SOURCE.without("--seed", "--iterations"),
)
EXAMPLES = ("trtops sensitivity model.onnx --calibration-cache int8.cache --load-inputs images.json --budget 0.01",)


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        model: The model.
        cache: The ranges.
        config: The op's config.
        experiment: Where to remember it.
        store: Where the memory is.
    """

    model: str
    cache: str
    config: SensitivityConfig
    experiment: str | None
    store: str | None


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    given = {"samples": args.samples, "batch": args.batch, "budget": args.budget, "mode": args.mode}
    config = ops.SensitivityConfig(
        data=configs.data_source(args), keep=tuple(args.keep or ()), **{n: v for n, v in given.items() if v is not None}
    )
    return Plan(args.model_file, args.calibration_cache, config, args.experiment, args.store)


def execute(plan: Plan) -> int:
    """Measure, and print."""
    tracker = (
        memory.existing(plan.store)
        if plan.cache.startswith(RUN_PREFIX)
        else memory.kept_or_forgotten(plan.experiment, plan.store)
    )
    with progress("Measuring", "layers") as bar:
        result = ops.sensitivity(
            plan.model, plan.cache, plan.config, tracker=tracker, experiment=plan.experiment, progress=bar.update
        )
    say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1
