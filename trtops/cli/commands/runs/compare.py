"""Show params and numbers of runs side by side; by default those that differ."""

from __future__ import annotations

from dataclasses import dataclass

from trtops import ops
from trtops.cli import groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_json, say_table

GROUPS = (
    Group(
        "runs",
        (
            Flag(names=("runs",), takes="many", help="ids of runs, or what they begin with"),
            Flag(names=("--all",), takes="switch", help="show what is the same as well"),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs compare 8d6e3f 1a2b3c",)


@dataclass(frozen=True)
class Plan:
    """Which runs.

    Attributes:
        runs: Their ids.
        all: Whether to show what is the same.
        store: Where they are.
        json: Whether to print JSON.
    """

    runs: tuple[str, ...]
    all: bool
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(tuple(args.runs), bool(args.all), args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Show them."""
    tracker = memory.existing(plan.store)
    runs = [tracker.whole_id(run) for run in plan.runs]
    lines = [line for line in ops.side_by_side(runs, tracker) if plan.all or not line.same]
    if plan.json:
        say_json([line.to_dict() for line in lines])
    elif lines:
        say_table(("", *(run[:8] for run in runs)), ((line.name, *(v or "-" for v in line.values)) for line in lines))
    else:
        say("Nothing differs.")
    return 0
