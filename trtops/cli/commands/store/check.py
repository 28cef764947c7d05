"""Find problems of a store. Nothing is changed.

Reported are runs whose processes are gone, runs without files or without a manifest, files without runs, half-written files,
runs in the spool, and leftovers of dead processes on this machine. The exit code is 1 if there is a problem.
"""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job

GROUPS = (Group("store", (store.ROOT, flag("--artifacts FOLDER", "for a server: the folder of its files"))),)
EXAMPLES = (
    "trtops store check --root mlruns",
    "trtops store check --root http://127.0.0.1:5000 --artifacts mlruns/team/mlflow/artifacts",
)


def plan(args: Options) -> Job:
    """Return the job."""
    return store.job("check", root=args.root, artifacts=args.artifacts)
