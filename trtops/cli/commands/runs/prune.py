"""Delete large artifacts of old bad runs; records, statistics and accepted engines stay. Without --apply it only lists them."""

from __future__ import annotations

from trtops.cli import choosing, configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, op_job

GROUPS = (
    Group(
        "rule",
        (
            choosing.KINDS_OF_RUNS,
            choosing.EXPERIMENT,
            flag("--larger-than SIZE", "only larger artifacts (default: 1M)"),
        ),
    ),
    configs.config_flags(
        "rule",
        "PruneConfig",
        {"older_than_days": "--older-than", "verdicts": "--verdict"},
        skip="larger_than_bytes kinds experiment",
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs prune --older-than 90", "trtops runs prune --older-than 90 --larger-than 10M --apply")


def plan(args: Options) -> Job:
    """Return the job."""
    config = configs.make(
        args,
        "PruneConfig",
        larger_than_bytes=args.larger_than,
        kinds=tuple(args.kind) if args.kind else None,
        experiment=args.experiment,
    )
    return op_job(args, "prune_runs", config, store="reads", progress=("Pruning", "runs"))
