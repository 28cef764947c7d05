"""Find problems of a store. Nothing is changed.

Reported are runs whose processes are gone, runs without files or without a manifest, files without runs, half-written files,
runs in the spool, and leftovers of dead processes on this machine. The exit code is 1 if there is a problem.
"""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Asked, Flag, Group

_ARTIFACTS = Flag(names=("--artifacts",), shown="FOLDER", help="for a server: the folder of its files")
GROUPS = (Group("store", (store.ROOT, _ARTIFACTS)),)
EXAMPLES = (
    "trtops store check --root mlruns",
    "trtops store check --root http://127.0.0.1:5000 --artifacts mlruns/team/mlflow/artifacts",
)


def plan(args: Asked) -> tuple[str, ...]:
    """The arguments for :func:`trtops.tracking.store.main`."""
    return store.words("check", root=args.root, artifacts=args.artifacts)


execute = store.execute
