"""Remove an entry from the deny-list. The entry stays in the store, with the reason."""

from __future__ import annotations

from typing import Any

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, no_verdict, op_job
from trtops.cli.logs import say

GROUPS = (
    Group(
        "run",
        (
            flag("run", "an entry of the deny-list, as `trtops runs list --kind deny` shows it"),
            flag("--why REASON", "why it is removed", required=True),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs pardon 8d6e3f --why 'fixed by the new driver'",)


def plan(args: Options) -> Job:
    """Return the job."""
    return op_job(args, "pardon", args.run, why=args.why, store="reads", show=_show, code=no_verdict)


def _show(result: Any, store: str | None) -> None:
    say(f"Removed from the deny-list by run {result.run_id}")
