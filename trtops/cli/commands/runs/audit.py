"""Check that runs are whole: every file is read and held against the manifest. Exits with 1 if one is not."""

from __future__ import annotations

from dataclasses import dataclass

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_json

GROUPS = (
    Group(
        "runs",
        (
            Flag(names=("runs",), takes="any", help="ids of runs, or what they begin with"),
            Flag(names=("--experiment",), shown="NAME", help="all finished runs of an experiment"),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs audit 8d6e3f", "trtops runs audit --experiment resnet50")


@dataclass(frozen=True)
class Plan:
    """What to check.

    Attributes:
        runs: Ids of runs.
        experiment: The experiment whose runs are checked.
        store: Where they are.
        json: Whether to print JSON.
    """

    runs: tuple[str, ...]
    experiment: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    if bool(args.runs) == (args.experiment is not None):
        raise UsageError("give ids of runs, or --experiment NAME")
    return Plan(tuple(args.runs or ()), args.experiment, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Check, and print."""
    tracker = configs.opened(plan.store)
    runs = plan.runs
    if plan.experiment is not None:
        runs = tuple(
            row.id for row in ops.list_runs(tracker, experiment=plan.experiment, status="finished", limit=None)
        )
    found = ops.audit(runs, tracker)
    if plan.json:
        say_json([each.to_dict() for each in found])
    for each in () if plan.json else found:
        say(f"{each.id} {each.name}: " + (f"whole, {each.files} files" if each.whole else f"not whole: {each.why}"))
    return 0 if all(each.whole for each in found) else 1
