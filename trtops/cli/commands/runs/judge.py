"""Judge stored comparisons again, by other tolerances.

Nothing is run, and nothing is changed in the store. Exits with 1 if one is bad.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_json

if TYPE_CHECKING:
    from trtops.comparator.report import Tolerances

GROUPS = (
    Group(
        "runs",
        (Flag(names=("runs",), takes="many", help="ids, or what they begin with, of runs that hold a comparison"),),
    ),
    groups.STATISTICS,
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs judge 8d6e3f --check-error-stat max --atol 1e-3 --rtol 1e-2",)


@dataclass(frozen=True)
class Plan:
    """What to judge.

    Attributes:
        runs: Ids of runs.
        tolerances: When they are good.
        store: Where they are.
        json: Whether to print JSON.
    """

    runs: tuple[str, ...]
    tolerances: Tolerances
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    found = configs.tolerances(args)
    if found is None:
        raise UsageError("give the tolerances to judge by, such as --atol 1e-3 --rtol 1e-2")
    return Plan(tuple(args.runs), found, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Judge, and print."""
    judged = ops.judge_again(plan.runs, plan.tolerances, configs.opened(plan.store))
    if plan.json:
        say_json([each.to_dict() for each in judged])
    for each in () if plan.json else judged:
        say(
            "\n".join(
                [
                    f"{each.id} {each.name}: {each.verdict} (was {each.before or '-'})",
                    *(f"    {r}" for r in each.reasons),
                ]
            )
        )
    return 0 if all(each.verdict == "good" for each in judged) else 1
