"""Upload the runs that were spooled on this machine while the store was away or full.

Runs that cannot be uploaded stay in the spool, and the exit code is 1.
"""

from __future__ import annotations

from trtops.cli import store
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job

_MOVED = flag("--moved", "also runs that were meant for another address of the store", default=False)
GROUPS = (Group("store", (store.ROOT, _MOVED)),)
EXAMPLES = ("trtops store upload", "trtops store upload --root http://tracking:5000 --moved")


def plan(args: Options) -> Job:
    """Return the job."""
    return store.job("upload", *(["--moved"] if args.moved else []), root=args.root)
