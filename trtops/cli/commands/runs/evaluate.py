"""Re-evaluate stored runs, by other tolerances or by a policy of the gate, and propose limits from those that are good.

Runs that are named are evaluated by tolerances. With --policy, or by filters, history is evaluated: which accepted engines would
fail, and which limits the good runs support. Nothing is run, and nothing is changed in the store. Exits with 1 if one is bad.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import choosing, configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_json, say_result

if TYPE_CHECKING:
    from trtops.comparator.report import Tolerances
    from trtops.ops.gate.history import HistoryConfig

GROUPS = (
    Group(
        "runs",
        (Flag(names=("runs",), takes="any", help="ids, or what they begin with, of runs that hold a comparison"),),
    ),
    Group(
        "history",
        (
            Flag(names=("--policy",), shown="FILE", help="a policy of the gate (YAML) to evaluate by"),
            *(choosing.EXPERIMENT, choosing.TAGS),
            Flag(names=("--accepted",), takes="switch", help="accepted engines alone, and not all good runs"),
            Flag(names=("-n", "--limit"), usual="all", to="limit", convert=int, shown="N", help="so many at most"),
        ),
    ),
    groups.STATISTICS,
    groups.STORE,
    groups.JSON,
)
EXAMPLES = (
    "trtops runs evaluate 8d6e3f --check-error-stat max --atol 1e-3 --rtol 1e-2",
    "trtops runs evaluate --accepted --policy gate.yaml",
    "trtops runs evaluate --experiment resnet50 --atol 1e-3",
)


@dataclass(frozen=True)
class Plan:
    """What to evaluate.

    Attributes:
        runs: Ids of runs.
        tolerances: When they are good.
        history: Which history is evaluated, in place of runs by tolerances.
        policy: The policy's file, for history.
        store: Where they are.
        json: Whether to print JSON.
    """

    runs: tuple[str, ...]
    tolerances: Tolerances | None
    history: HistoryConfig | None
    policy: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    tolerances = configs.tolerances(args)
    filters = {
        "experiment": args.experiment,
        "tags": tuple(args.tag) if args.tag else None,
        "limit": args.limit,
        "accepted_only": bool(args.accepted),
    }
    runs = tuple(args.runs or ())
    history = None
    if args.policy is not None or not runs:
        if args.policy is not None and tolerances is not None:
            raise UsageError("--policy has the tolerances; leave out those on the line")
        if runs and any(filters.values()):
            raise UsageError("runs are named, so that nothing is to be found; leave out the filters")
        if not runs and not any(filters.values()):
            raise UsageError("say which runs: their ids, --experiment NAME, --tag NAME=VALUE, or --accepted")
        history = ops.HistoryConfig(runs=runs, **configs.given(**filters))
    elif tolerances is None:
        raise UsageError("give the tolerances to evaluate by, such as --atol 1e-3 --rtol 1e-2, or --policy FILE")
    elif any(filters.values()):
        raise UsageError("runs are named, so that nothing is to be found; leave out the filters")
    return Plan(runs, tolerances, history, args.policy, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Evaluate, and print."""
    if plan.history is not None:
        return _evaluate_history(plan.history, plan)
    assert plan.tolerances is not None
    evaluated = ops.reevaluate(plan.runs, plan.tolerances, memory.existing(plan.store))
    if plan.json:
        say_json([each.to_dict() for each in evaluated])
    for each in () if plan.json else evaluated:
        say(
            "\n".join(
                [
                    f"{each.id} {each.name}: {each.verdict} (was {each.before or '-'})",
                    *(f"    {r}" for r in each.reasons),
                ]
            )
        )
    return 0 if all(each.verdict == "good" for each in evaluated) else 1


def _evaluate_history(config: HistoryConfig, plan: Plan) -> int:
    policy = ops.policy_of(plan.tolerances) if plan.policy is None else ops.read_policy(plan.policy)
    result = ops.evaluate_history(replace(config, policy=policy), tracker=memory.existing(plan.store))
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1
