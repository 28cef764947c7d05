"""Put what a proof confirmed on the deny-list, which later builds on the same device and release mind."""

from __future__ import annotations

from dataclasses import dataclass

from trtops import ops
from trtops.cli import groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_ending, say_json

GROUPS = (Group("run", (Flag(names=("run",), help="a proof of `trtops debug prove`"),)), groups.STORE, groups.JSON)
EXAMPLES = ("trtops runs deny 8d6e3f", "trtops runs list --kind deny")


@dataclass(frozen=True)
class Plan:
    """What to deny.

    Attributes:
        run: The proof's run.
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
    """Deny, and print."""
    result = ops.deny(plan.run, tracker=memory.existing(plan.store))
    if plan.json:
        say_json(result.to_dict())
    else:
        say(
            f"On the deny-list by run {result.run_id}. Take it off again by: trtops runs pardon {result.run_id} --why ..."
        )
        say_ending(result, plan.store)
    return 0
