"""Close the runs of dead processes, and remove their child processes and temporary folders on this machine."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Group, Options
from trtops.cli.jobs import Job

GROUPS = (Group("store", (store.ROOT,)),)
EXAMPLES = ("trtops store reap --root mlruns",)


def plan(args: Options) -> Job:
    """Return the job."""
    return store.job("reap", root=args.root)
