"""Find what is wrong with a store, and mend what is safe.

Runs whose processes are gone, runs without files or without a manifest, files without runs, what was left half-written, runs
that wait in the outbox, and what dead processes left on this machine. Files that belong to no run are put aside, never
deleted. The exit code is 1 while something is left.
"""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Asked, Flag, Group

GROUPS = (
    Group(
        "store",
        (
            store.ROOT,
            Flag(names=("--mend",), takes="switch", default=False, help="mend what is safe"),
            Flag(names=("--artifacts",), shown="FOLDER", help="of a server: the folder that it keeps its files in"),
        ),
    ),
)
EXAMPLES = (
    "trtops store check",
    "trtops store check --root mlruns --mend",
    "trtops store check --root http://127.0.0.1:5000 --artifacts mlruns/team/mlflow/artifacts",
)


def plan(args: Asked) -> tuple[str, ...]:
    """The words that :func:`trtops.tracking.store.main` takes."""
    return (*store.words("check", root=args.root, artifacts=args.artifacts), *(["--mend"] if args.mend else []))


execute = store.execute
