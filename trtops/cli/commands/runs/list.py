"""List runs of the store, newest first."""

from __future__ import annotations

import time
from dataclasses import dataclass

from trtops import ops
from trtops.cli import choosing, groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_json, say_table

GROUPS = (
    Group(
        "which",
        (
            *(choosing.EXPERIMENT, choosing.KIND, choosing.VERDICT, choosing.TAGS),
            Flag(
                names=("--status",),
                usual="any",
                choices=("running", "finished", "failed", "killed"),
                help="only with this status",
            ),
            Flag(names=("--parent",), shown="RUN", help="only below this run"),
            Flag(names=("-n", "--limit"), to="limit", convert=int, default=50, shown="N", help="so many at most"),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs list --experiment resnet50 --verdict bad", "trtops runs list --kind debug_build --json")


@dataclass(frozen=True)
class Plan:
    """Which runs.

    Attributes:
        which: Arguments of the op.
        store: Where they are.
        json: Whether to print JSON.
    """

    which: tuple[tuple[str, object], ...]
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    tags = dict(args.tag or ())
    names = ("experiment", "kind", "verdict", "status", "parent", "limit")
    which = {name: getattr(args, name) for name in names} | {"tags": tags}
    return Plan(tuple(which.items()), args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """List them."""
    rows = ops.list_runs(memory.existing(plan.store), **dict(plan.which))  # type: ignore[arg-type]
    if plan.json:
        say_json([row.to_dict() for row in rows])
        return 0
    when = "%Y-%m-%d %H:%M:%S"
    cells = (
        (
            r.id,
            r.experiment,
            r.kind,
            r.status,
            r.verdict or "-",
            time.strftime(when, time.localtime(r.start_time)),
            r.name,
        )
        for r in rows
    )
    if rows:
        say_table(("run", "experiment", "kind", "status", "verdict", "begun", "name"), cells)
    else:
        say("No such runs.")
    return 0
