"""Close a run that is left running, and the runs below it, after its process was killed or its machine is gone.

The run ends as killed, with the reason; a campaign can then be resumed anywhere. A run whose process may still be writing is
closed only with --force.
"""

from __future__ import annotations

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, tracker
from trtops.cli.logs import say, say_json
from trtops.record import to_jsonable

GROUPS = (
    Group(
        "run",
        (
            flag("run", "a run, as `trtops runs list` shows it"),
            flag("--why REASON", "why it is closed (default: that its process is gone)", default=""),
            flag("--force", "also if its process may still be writing", default=False),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs close 8d6e3f", "trtops runs close 8d6e3f --force --why 'the machine was returned'")


def plan(args: Options) -> Job:
    """Return the job."""
    return Job(call=_close, args=(args.run, args.why, args.force, args.store, bool(args.json)))


def _close(run: str, why: str, force: bool, place: str | None, as_json: bool) -> int:
    from trtops.tracking.check import close

    closed = close(tracker("reads", place), run, why=why, force=force)
    if as_json:
        say_json(to_jsonable([{"id": info.id, "name": info.name, "status": info.status} for info in closed]))
    else:
        say("\n".join(f"{info.id} {info.status} {info.name}" for info in closed))
    return 0
