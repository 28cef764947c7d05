"""Find the choice that makes a build bad, by building mixtures of a good and a bad build.

Give a campaign of `trtops debug build`, whose most similar good and bad builds are taken, or a good and a bad build of one.
Exits with 1 if no culprit is confirmed.
"""

from __future__ import annotations

from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, op_job

GROUPS = (
    Group(
        "runs",
        (
            flag("run", "a campaign of `trtops debug build`, or one of its good builds"),
            flag("bad?", "a bad build of the same campaign, if the first is a good build"),
        ),
    ),
    configs.config_flags("bisection", "BisectConfig"),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops debug bisect 8d6e3f", "trtops debug bisect 11b2c9 77e0aa --max-builds 30")


def plan(args: Options) -> Job:
    """Return the job."""
    config = configs.make(args, "BisectConfig")
    return op_job(args, "bisect", args.run, args.bad, config, store="reads", progress=("Bisecting", "builds"))
