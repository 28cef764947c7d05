"""Upload the runs that were spooled on this machine while the store was away or full.

Runs that cannot be uploaded stay in the spool, and the exit code is 1.
"""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Asked, Flag, Group

_MOVED = Flag(
    names=("--moved",), takes="switch", default=False, help="also runs that were meant for another address of the store"
)
GROUPS = (Group("store", (store.ROOT, _MOVED)),)
EXAMPLES = ("trtops store upload", "trtops store upload --root http://tracking:5000 --moved")


def plan(args: Asked) -> tuple[str, ...]:
    """The arguments for :func:`trtops.tracking.store.main`."""
    return (*store.words("upload", root=args.root), *(["--moved"] if args.moved else []))


execute = store.execute
