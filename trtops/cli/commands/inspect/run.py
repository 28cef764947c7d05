"""Show what the store holds of a run: params, numbers, tags and files. Exits with 1 if the run is not whole."""

from __future__ import annotations

from dataclasses import dataclass

from trtops import ops
from trtops.cli import asking, groups, memory
from trtops.cli.flags import Asked, Flag, Group

GROUPS = (
    Group("run", (Flag(names=("run",), help="the run's id or what it begins with, with or without run: before it"),)),
    groups.JSON,
    groups.STORE,
)
EXAMPLES = ("trtops inspect run 8d6e3f", "trtops inspect run run:8d6e3f --json")


@dataclass(frozen=True)
class Plan:
    """Which run.

    Attributes:
        run: Its id.
        store: Where it is.
        json: Whether to print JSON.
    """

    run: str
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(args.run, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Look, and print."""
    found = ops.inspect_run(plan.run, memory.existing(plan.store))
    asking.show(found, plan.json)
    record = found.to_json()
    return 0 if isinstance(record, dict) and record["whole"] else 1
