"""Take an entry off the deny-list. It stays in the store, and so does the reason."""

from __future__ import annotations

from dataclasses import dataclass

from trtops import ops
from trtops.cli import groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_json

GROUPS = (
    Group(
        "run",
        (
            Flag(names=("run",), help="an entry of the deny-list, as `trtops runs list --kind deny` shows it"),
            Flag(names=("--why",), shown="REASON", required=True, help="why it is taken off"),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs pardon 8d6e3f --why 'mended by the new driver'",)


@dataclass(frozen=True)
class Plan:
    """What to pardon.

    Attributes:
        run: The entry's run.
        why: The reason.
        store: Where it is.
        json: Whether to print JSON.
    """

    run: str
    why: str
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(args.run, args.why, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Pardon, and print."""
    result = ops.pardon(plan.run, tracker=memory.existing(plan.store), why=plan.why)
    if plan.json:
        say_json(result.to_dict())
    else:
        say(f"Off the deny-list by run {result.run_id}")
    return 0
