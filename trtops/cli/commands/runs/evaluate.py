"""Re-evaluate stored runs with other tolerances. Nothing runs and the store does not change. Exits with 1 if one is bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_json

if TYPE_CHECKING:
    from trtops.comparator.report import Tolerances

GROUPS = (
    Group(
        "runs", (Flag(names=("runs",), takes="many", help="run ids, or their beginnings, of runs with a comparison"),)
    ),
    groups.STATISTICS,
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs evaluate 8d6e3f --check-error-stat max --atol 1e-3 --rtol 1e-2",)


@dataclass(frozen=True)
class Plan:
    """What to evaluate.

    Attributes:
        runs: Ids of runs.
        tolerances: The tolerances.
        store: The tracking store.
        json: Whether to print JSON.
    """

    runs: tuple[str, ...]
    tolerances: Tolerances
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """Parse the options."""
    tolerances = configs.tolerances(args)
    if tolerances is None:
        raise UsageError("give tolerances, such as --atol 1e-3 --rtol 1e-2")
    return Plan(tuple(args.runs), tolerances, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Evaluate and print."""
    evaluated = ops.reevaluate(plan.runs, plan.tolerances, memory.existing(plan.store))
    if plan.json:
        say_json([each.to_dict() for each in evaluated])
    for each in () if plan.json else evaluated:
        lines = [
            f"{each.id} {each.name}: {each.verdict} (was {each.before or '-'})",
            *(f"    {r}" for r in each.reasons),
        ]
        say("\n".join(lines))
    return 0 if all(each.verdict == "good" for each in evaluated) else 1
