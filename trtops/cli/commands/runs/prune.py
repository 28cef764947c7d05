"""Drop large artifacts of old bad runs; records, statistics and accepted engines stay. Without --apply it only says what."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import choosing, configs, groups, memory, values
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say_json, say_result

if TYPE_CHECKING:
    from trtops.ops.auditing.prune import PruneConfig

log = logging.getLogger(__name__)

GROUPS = (
    Group(
        "rule",
        (
            Flag(
                names=("--older-than",),
                convert=float,
                shown="DAYS",
                help="only runs that ended so long ago (default: 30)",
            ),
            Flag(
                names=("--verdict",),
                takes="many",
                choices=("good", "bad", "error"),
                help="only runs with these verdicts (default: bad error)",
            ),
            Flag(
                names=("--larger-than",), convert=values.size, shown="SIZE", help="only larger artifacts (default: 1M)"
            ),
            *(choosing.KINDS_OF_RUNS, choosing.EXPERIMENT),
            Flag(names=("--apply",), takes="switch", help="drop them"),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs prune --older-than 90", "trtops runs prune --older-than 90 --larger-than 10M --apply")


@dataclass(frozen=True)
class Plan:
    """What to drop.

    Attributes:
        config: The op's config.
        store: Where the runs are.
        json: Whether to print JSON.
    """

    config: PruneConfig
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    asked = configs.given(
        older_than_days=args.older_than,
        verdicts=tuple(args.verdict) if args.verdict else None,
        larger_than_bytes=args.larger_than,
        kinds=tuple(args.kind) if args.kind else None,
        experiment=args.experiment,
    )
    return Plan(ops.PruneConfig(apply=bool(args.apply), **asked), args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Drop, or say what would be dropped."""
    result = ops.prune_runs(
        plan.config,
        tracker=memory.existing(plan.store),
        progress=lambda done, total: log.info("%d of %d runs", done, total),
    )
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return int(result.verdict != "good")
