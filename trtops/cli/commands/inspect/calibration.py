"""Show a calibration cache, or what differs between two: files of either format, or run:<id>. Two that differ exit with 1."""

from __future__ import annotations

from dataclasses import dataclass

from trtops import ops
from trtops.cli import asking, groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_json
from trtops.tracking.ids import RUN_PREFIX

GROUPS = (
    Group(
        "caches",
        (
            Flag(names=("cache",), help="a calibration cache, or run:<id>"),
            Flag(names=("other",), takes="optional", help="another one to compare with"),
            Flag(names=("--ratio",), convert=float, default=1.25, help="ranges further apart count as changed"),
        ),
    ),
    groups.JSON,
    groups.STORE,
)
EXAMPLES = ("trtops inspect calibration int8.cache", "trtops inspect calibration old.cache new.cache --ratio 2")


@dataclass(frozen=True)
class Plan:
    """Which caches.

    Attributes:
        cache: The cache.
        other: Another, to compare with.
        ratio: How far apart counts.
        store: Where runs are.
        json: Whether to print JSON.
    """

    cache: str
    other: str | None
    ratio: float
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(args.cache, args.other, args.ratio, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Look, and print."""
    tracker = (
        memory.existing(plan.store) if any(str(c).startswith(RUN_PREFIX) for c in (plan.cache, plan.other)) else None
    )
    if plan.other is None:
        asking.show(ops.inspect_calibration(plan.cache, tracker=tracker), plan.json)
        return 0
    found = ops.compare_calibrations(plan.cache, plan.other, plan.ratio, tracker=tracker)
    if plan.json:
        say_json(found.to_dict())
    else:
        say(found.text())
    return 0 if found.same else 1
