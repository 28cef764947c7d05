"""Close the runs whose processes are gone without having done so, and remove what these left on this machine.

That is: processes that they had started, temporary folders, and the files of locks.
"""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Asked, Group

GROUPS = (Group("store", (store.ROOT,)),)
EXAMPLES = ("trtops store reap --root mlruns",)


def plan(args: Asked) -> tuple[str, ...]:
    """The words that :func:`trtops.tracking.store.main` takes."""
    return store.words("reap", root=args.root)


execute = store.execute
