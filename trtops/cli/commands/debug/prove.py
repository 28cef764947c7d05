"""Test a campaign's suspect: put it into a good build, and take it out of a bad one, by replay.

A confirmed suspect goes on the deny-list, which later builds respect. Exits with 1 if it is refuted, or cannot be swapped
alone.
"""

from __future__ import annotations

from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, op_job

GROUPS = (
    Group("run", (flag("run", "a campaign of `trtops debug build`"),)),
    configs.config_flags("proof", "ProveConfig"),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops debug prove 8d6e3f", "trtops debug prove 8d6e3f --suspect 1 --repeats 5 --no-deny")


def plan(args: Options) -> Job:
    """Return the job."""
    config = configs.make(args, "ProveConfig")
    return op_job(args, "prove", args.run, config, store="reads", progress=("Proving", "builds"))
