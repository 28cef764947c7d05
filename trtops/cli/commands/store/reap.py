"""Close the runs of dead processes, and remove their child processes and temporary folders on this machine."""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Asked, Group

GROUPS = (Group("store", (store.ROOT,)),)
EXAMPLES = ("trtops store reap --root mlruns",)


def plan(args: Asked) -> tuple[str, ...]:
    """The arguments for :func:`trtops.tracking.store.main`."""
    return store.words("reap", root=args.root)


execute = store.execute
