"""Show the store in MLflow's UI, until Ctrl-C."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job

GROUPS = (Group("store", (store.ROOT, flag("--port PORT", "the port on this machine", default=5000))),)
EXAMPLES = ("trtops store ui --root mlruns",)


def plan(args: Options) -> Job:
    """Return the job."""
    return store.job("ui", root=args.root, port=args.port)
