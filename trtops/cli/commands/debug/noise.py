"""Say what runs, builds and the precision add to the error of a campaign's engines, and below which limit it stays.

Its engines are run again and again, and their errors split.
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
    from trtops.ops.campaign.noise import NoiseConfig

log = logging.getLogger(__name__)

GROUPS = (
    Group(
        "measuring",
        (
            Flag(names=("run",), help="a campaign of `trtops debug build`"),
            Flag(names=("--builds",), usual="8", convert=int, shown="N", help="how many of its engines are run"),
            Flag(names=("--runs",), usual="8", convert=int, shown="N", help="how often each is"),
            Flag(
                names=("--statistic",),
                usual="max_abs",
                choices=("max_abs", "mean_abs", "l2"),
                help="which error is split",
            ),
            Flag(names=("--confidence",), usual="0.95", convert=float, help="of the test whether builds differ"),
        ),
    ),
    groups.REMEMBERED,
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops debug noise 8d6e3f", "trtops debug noise 8d6e3f --builds 16 --runs 4 --statistic mean_abs")


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        run: The campaign's run.
        config: The op's config.
        store: Where it is.
        json: Whether to print JSON.
    """

    run: str
    config: NoiseConfig
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    given = {name: getattr(args, name) for name in ("builds", "runs", "statistic", "confidence")}
    given = {name: value for name, value in given.items() if value is not None}
    config = ops.NoiseConfig(**given, allow_scripts=bool(args.allow_scripts))
    return Plan(args.run, config, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Measure, and tell."""
    result = ops.noise(
        plan.run,
        plan.config,
        tracker=memory.existing(plan.store),
        progress=lambda done, total: log.info("%d of %d engines", done, total),
    )
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0
