"""Put a confirmed culprit on the deny-list, which later builds on the same device and release respect."""

from __future__ import annotations

from typing import Any

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, no_verdict, op_job
from trtops.cli.logs import say, say_ending

GROUPS = (Group("run", (flag("run", "a proof of `trtops debug prove`"),)), groups.STORE, groups.JSON)
EXAMPLES = ("trtops runs deny 8d6e3f", "trtops runs list --kind deny")


def plan(args: Options) -> Job:
    """Return the job."""
    return op_job(args, "deny", args.run, store="reads", show=_show, code=no_verdict)


def _show(result: Any, store: str | None) -> None:
    say(f"Added to the deny-list by run {result.run_id}. Remove it with: trtops runs pardon {result.run_id} --why ...")
    say_ending(result, store)
