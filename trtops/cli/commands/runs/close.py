"""Close a run that is left running, and the runs below it: its process was killed, or its machine is gone.

The run ends as killed, with the reason; a campaign can then be resumed anywhere. A run whose process may still be writing it
is closed only by --force.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtops.cli import groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_json
from trtops.record import to_jsonable

GROUPS = (
    Group(
        "run",
        (
            Flag(names=("run",), help="a run, as `trtops runs list` shows it"),
            Flag(names=("--why",), shown="REASON", help="why it is closed (default: that its process is gone)"),
            Flag(names=("--force",), takes="switch", default=False, help="also if its process may still be writing it"),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs close 8d6e3f", "trtops runs close 8d6e3f --force --why 'the machine was given back'")


@dataclass(frozen=True)
class Plan:
    """What to close.

    Attributes:
        run: The run.
        why: The reason; empty for the default.
        force: Whether its process is asked about.
        store: Where it is.
        json: Whether to print JSON.
    """

    run: str
    why: str
    force: bool
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(args.run, args.why or "", args.force, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Close, and print."""
    from trtops.tracking.check import close

    closed = close(memory.existing(plan.store), plan.run, why=plan.why, force=plan.force)
    if plan.json:
        say_json(to_jsonable([{"id": info.id, "name": info.name, "status": info.status} for info in closed]))
    else:
        say("\n".join(f"{info.id} {info.status} {info.name}" for info in closed))
    return 0
