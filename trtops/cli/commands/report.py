"""Write a report of a run, or of two runs side by side: one HTML file that needs nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from trtops import ops
from trtops.cli import groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_json

GROUPS = (
    Group(
        "report",
        (
            Flag(
                names=("run",),
                help="the run's id or what it begins with: a build, a campaign, a proof, a gate, an audit",
            ),
            Flag(names=("beside",), takes="optional", help="another run, to be held against the first"),
            Flag(
                names=("-o", "--output"),
                to="output",
                shown="FILE",
                help="the file to write; report-<run>.html unless given",
            ),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops report 8d6e3f", "trtops report 8d6e3f 1a2b3c -o difference.html")


@dataclass(frozen=True)
class Plan:
    """Which run, and where to.

    Attributes:
        run: Its id.
        beside: Another run; None for a report of the first alone.
        output: The file to write; None for the usual name.
        store: Where the runs are.
        json: Whether to print JSON.
    """

    run: str
    beside: str | None
    output: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(args.run, args.beside, args.output, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Write it, and say where it is."""
    written = ops.report(plan.run, plan.beside, tracker=memory.opened(plan.store), output=plan.output)
    if plan.json:
        say_json(written.to_dict())
    else:
        say(written.path)
    return 0
