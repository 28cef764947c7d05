"""Find the fastest engine that passes: nodes kept, tactics denied, tensors marked, optimization level and INT8 ranges together.

Prints accuracy against latency, with the Pareto front, and writes the chosen config for `trtops convert --config`. Engines that
the store has already cost no build. Exits with 1 if no engine passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_json, say_result

if TYPE_CHECKING:
    from trtops.ops.repairing.config import RepairConfig
    from trtops.ops.repairing.space import Outcome, Point

CHANGES = ("keep", "deny", "mark", "level", "calibration")

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "searching",
        (
            Flag(names=("-o", "--output"), to="written", shown="FILE", help="where to write the chosen config (JSON)"),
            Flag(names=("--picture",), shown="FILE", help="where to draw error against latency, as PNG"),
            Flag(names=("--change",), takes="many", choices=CHANGES, help="what may be changed (default: all)"),
            Flag(names=("--keep",), takes="many", shown="NODE", help="nodes that may be kept in higher precision"),
            Flag(names=("--mark",), takes="many", shown="TENSOR", help="tensors that may be marked as outputs"),
            Flag(names=("--max-builds",), usual="80", convert=int, shown="N", help="builds at most"),
            Flag(names=("--patience",), usual="24", convert=int, shown="N", help="builds without a faster engine after which to stop"),
            Flag(names=("--minutes",), usual="no limit", convert=float, shown="N", help="build nothing after so many minutes"),
            Flag(names=("--latency-runs",), usual="30", convert=int, shown="N", help="inferences that each latency is measured on"),
            Flag(names=("--golden", "--load-outputs"), shown="FILE", help="saved outputs that are right"),
        ),
    ),
    groups.JSON, groups.TRACKING, configs.BACKEND,
    groups.STATISTICS,
    groups.SOURCE, groups.SPEC,
    Group(
        "what the engine is built with",
        tuple(flag for group in groups.TRT_BUILD for flag in group.flags if flag.dest == "calibration_cache"),
    ),
)  # fmt: skip
EXAMPLES = (
    "trtops repair model.onnx --fp16 --load-inputs inputs.json -o fixed.json",
    "trtops repair model.onnx --trt --int8 --calibration-cache int8.cache --max-builds 40 --experiment resnet50",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to repair.

    Attributes:
        model: The model.
        config: The op's config.
        experiment: Where to remember it.
        store: Where the memory is.
        json: Whether to print JSON.
    """

    model: str
    config: RepairConfig
    experiment: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    timed = configs.given(latency_runs=args.latency_runs)
    config = ops.RepairConfig(
        build=configs.build_config(args, args.backend or "onnxruntime"),
        check=configs.check_config(args, golden=args.golden, plots="never", **timed),
        calibration_cache=args.calibration_cache,
        keep=tuple(args.keep or ()),
        mark=tuple(args.mark or ()),
        output=args.written,
        picture=args.picture,
        **configs.given(
            change=None if args.change is None else tuple(args.change),
            max_builds=args.max_builds,
            patience=args.patience,
            minutes=args.minutes,
        ),
    )
    return Plan(
        model=args.model_file,
        config=config,
        experiment=args.experiment,
        store=args.store if args.experiment else None,
        json=bool(args.json),
    )


def execute(plan: Plan) -> int:
    """Search, and print."""
    result = ops.repair(
        plan.model,
        plan.config,
        tracker=memory.kept(plan.experiment, plan.store),
        experiment=plan.experiment,
        progress=None if plan.json else _say_trial,
    )
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1


def _say_trial(point: Point, outcome: Outcome) -> None:
    made = "" if outcome.builds else ", from the store"
    verdict = "good" if outcome.good else "bad"
    say(f"{verdict}, error {outcome.error:.3g}, {outcome.latency_ms:.3f} ms{made}: {point.describe()}")
