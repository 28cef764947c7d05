"""Compare two sides, output by output.

A side is a run of the store (run:<id>), an ONNX file, an engine file, or a file of saved outputs. The second side is taken for right. Exits with 1 if they differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say_json, say_result
from trtops.tracking.ids import RUN_PREFIX

if TYPE_CHECKING:
    from trtops.ops.evaluation.compare import CompareConfig

GROUPS = (
    Group(
        "sides",
        (
            Flag(names=("actual",), help="the side under test: run:<id>, .onnx, .engine, .plan, .ort, .json or .npz"),
            Flag(names=("golden",), help="the side that is taken for right"),
        ),
    ),
    Group(
        "tolerances ([OUTPUT:]VALUE for one output)",
        (
            *groups.STATISTICS.flags,
            next(f for f in groups.COMPARING.flags if f.dest == "infinities_compare_equal"),
        ),
    ),
    groups.SOURCE,
    groups.TRACKING,
    groups.JSON,
)
EXAMPLES = (
    "trtops compare run:8d6e3f model.onnx --experiment resnet50",
    "trtops inspect diff actual.json expected.json --rtol 1e-3",
)


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Attributes:
        actual: The side under test.
        golden: The side taken for right.
        config: The op's config.
        experiment: Where to remember it.
        store: Where the memory is.
        json: Whether to print JSON.
    """

    actual: str
    golden: str
    config: CompareConfig
    experiment: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    config = ops.CompareConfig(check=configs.check_config(args))
    return Plan(args.actual, args.golden, config, args.experiment, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Compare, and print."""
    stored = any(side.startswith(RUN_PREFIX) for side in (plan.actual, plan.golden))
    tracker = memory.existing(plan.store) if stored else memory.kept_or_forgotten(plan.experiment, plan.store)
    result = ops.compare(plan.actual, plan.golden, plan.config, tracker=tracker, experiment=plan.experiment)
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1
