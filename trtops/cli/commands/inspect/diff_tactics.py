"""Say which tactic is guilty: from folders or files of good and bad tactic records, or from runs of the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import groups, memory
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_json, say_result

if TYPE_CHECKING:
    from trtops.ops.campaign.diff_tactics import DiffTacticsConfig

GROUPS = (
    Group(
        "where builds come from",
        (
            Flag(names=("records",), takes="any", help="a good record and a bad one, as --good and --bad"),
            Flag(names=("--dir",), shown="FOLDER", help="a folder with good/ and bad/ in it"),
            Flag(names=("--good",), shown="PATH", help="a record of a good build, or a folder of them"),
            Flag(names=("--bad",), shown="PATH", help="a record of a bad build, or a folder of them"),
            Flag(names=("--runs",), takes="many", shown="RUN", help="campaigns or builds in the store"),
            Flag(names=("--of-experiment",), shown="NAME", help="all evaluated builds of an experiment in the store"),
            Flag(
                names=("--by",),
                usual="tactic",
                choices=("tactic", "format", "precision", "algorithm"),
                help="what is compared",
            ),
            Flag(names=("--confidence",), usual="0.95", convert=float, help="what a conviction needs"),
        ),
    ),
    groups.TRACKING,
    groups.JSON,
)
EXAMPLES = (
    "trtops inspect diff-tactics --dir replays",
    "trtops inspect diff-tactics --good good_replays --bad bad_replay.json",
    "trtops debug diff-tactics build1.json build2.json",
    "trtops inspect diff-tactics --runs 8d6e3f",
)


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Attributes:
        config: The op's config.
        experiment: Where to remember it.
        store: Where the memory is.
        json: Whether to print JSON.
    """

    config: DiffTacticsConfig
    experiment: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    good, bad = args.good, args.bad
    if args.records:
        if len(args.records) != 2 or good or bad:
            raise UsageError("two records are compared: the good one, then the bad one")
        good, bad = args.records
    given = {"by": args.by, "confidence": args.confidence}
    config = ops.DiffTacticsConfig(
        runs=tuple(args.runs or ()),
        experiment=args.of_experiment,
        folder=args.dir,
        good=good,
        bad=bad,
        **{name: value for name, value in given.items() if value is not None},
    )
    return Plan(config, args.experiment, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Compare, and print."""
    stored = plan.config.runs or plan.config.experiment is not None
    tracker = memory.existing(plan.store) if stored else memory.kept_or_forgotten(plan.experiment, plan.store)
    result = ops.diff_tactics(plan.config, tracker=tracker, experiment=plan.experiment)
    if plan.json:
        say_json(result.to_dict())
    else:
        for line in result.difference_lines():
            say(line)
        say_result(result, plan.store)
    return 0
