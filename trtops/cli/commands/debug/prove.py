"""Prove that the suspect of a campaign makes builds bad: put it into a good build, take it out of a bad one, by replay.

A suspect that is confirmed goes on the deny-list, which later builds mind. Exits with 1 if it is refuted, or cannot be
swapped alone.
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
    from trtops.ops.campaign.prove import ProveConfig

log = logging.getLogger(__name__)

GROUPS = (
    Group(
        "proof",
        (
            Flag(names=("run",), help="a campaign of `trtops debug build`"),
            Flag(
                names=("--suspect",),
                convert=int,
                shown="N",
                help="which suspect of the diff, the first is 0 (default: what the diff says)",
            ),
            Flag(names=("--repeats",), usual="3", convert=int, shown="N", help="how often each swap is made"),
            Flag(names=("--force",), takes="switch", help="prove a suspect that the diff hardly suspects, too"),
            Flag(names=("--no-deny",), takes="switch", help="leave the deny-list as it is"),
        ),
    ),
    groups.REMEMBERED,
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops debug prove 8d6e3f", "trtops debug prove 8d6e3f --suspect 1 --repeats 5 --no-deny")


@dataclass(frozen=True)
class Plan:
    """What to prove.

    Attributes:
        run: The campaign's run.
        config: The op's config.
        store: Where it is.
        json: Whether to print JSON.
    """

    run: str
    config: ProveConfig
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    given = {"suspect": args.suspect, "repeats": args.repeats}
    config = ops.ProveConfig(
        deny=not args.no_deny,
        force=bool(args.force),
        allow_scripts=bool(args.allow_scripts),
        **{name: value for name, value in given.items() if value is not None},
    )
    return Plan(args.run, config, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Swap, and tell."""
    result = ops.prove(
        plan.run,
        plan.config,
        tracker=memory.existing(plan.store),
        progress=lambda done, total: log.info("%d of %d builds", done, total),
    )
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1
