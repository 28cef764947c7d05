"""Report how much runs, builds and the precision add to the error of a campaign's engines, and a limit it stays below.

The engines are run repeatedly, and their errors split.
"""

from __future__ import annotations

from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, no_verdict, op_job

GROUPS = (
    Group("run", (flag("run", "a campaign of `trtops debug build`"),)),
    configs.config_flags("measuring", "NoiseConfig"),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops debug noise 8d6e3f", "trtops debug noise 8d6e3f --builds 16 --runs 4 --statistic mean_abs")


def plan(args: Options) -> Job:
    """Return the job."""
    config = configs.make(args, "NoiseConfig")
    progress = ("Measuring", "engines")
    return op_job(args, "noise", args.run, config, store="reads", progress=progress, code=no_verdict)
