"""Bring in the runs that were kept on this machine while the store was away or full.

What cannot be brought in stays where it is, and the exit code is 1.
"""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Asked, Flag, Group

GROUPS = (
    Group(
        "store",
        (
            store.ROOT,
            Flag(
                names=("--moved",),
                takes="switch",
                default=False,
                help="also runs that were meant for another address, where the store was before",
            ),
        ),
    ),
)
EXAMPLES = ("trtops store upload", "trtops store upload --root http://tracking:5000 --moved")


def plan(args: Asked) -> tuple[str, ...]:
    """The words that :func:`trtops.tracking.store.main` takes."""
    return (*store.words("upload", root=args.root), *(["--moved"] if args.moved else []))


execute = store.execute
