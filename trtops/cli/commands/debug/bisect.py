"""Find which choice makes a build bad: mixtures of a good and a bad build are built until one choice is convicted.

Give a campaign of `trtops debug build`, whose most alike good and bad builds are taken, or a good and a bad build of one.
Exits with 1 if nothing is convicted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say_json, say_result

if TYPE_CHECKING:
    from trtops.ops.campaign.bisected import BisectConfig

log = logging.getLogger(__name__)

GROUPS = (
    Group(
        "bisection",
        (
            Flag(names=("run",), help="a campaign of `trtops debug build`, or one of its good builds"),
            Flag(names=("bad",), takes="optional", help="a bad build of the same campaign, beside a good one"),
            Flag(names=("--max-builds",), convert=int, shown="N", help="builds at most (default: 60)"),
            Flag(
                names=("--max-minutes",),
                usual="no limit",
                convert=float,
                shown="M",
                help="begin no build after so many minutes",
            ),
            Flag(names=("--confidence",), convert=float, shown="P", help="what a conviction needs (default: 0.95)"),
            Flag(
                names=("--seed",),
                usual="0",
                convert=int,
                shown="N",
                help="of the coin that chooses between a mixture and its opposite",
            ),
        ),
    ),
    groups.REMEMBERED,
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops debug bisect 8d6e3f", "trtops debug bisect 11b2c9 77e0aa --max-builds 30")


@dataclass(frozen=True)
class Plan:
    """What to bisect.

    Attributes:
        run: The campaign, or a good build.
        bad: The bad build.
        config: The op's config.
        store: Where they are.
        json: Whether to print JSON.
    """

    run: str
    bad: str | None
    config: BisectConfig
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    names = ("max_builds", "max_minutes", "confidence", "seed")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    return Plan(
        args.run,
        args.bad,
        ops.BisectConfig(**given, allow_scripts=bool(args.allow_scripts)),
        args.store,
        bool(args.json),
    )


def execute(plan: Plan) -> int:
    """Build mixtures, and tell."""
    result = ops.bisect(
        plan.run,
        plan.bad,
        plan.config,
        tracker=memory.existing(plan.store),
        progress=lambda done, most: log.info("%d builds, at most %d", done, most),
    )
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1
