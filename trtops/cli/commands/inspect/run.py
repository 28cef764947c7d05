"""Show what the store holds of a run: params, numbers, tags and files. Exits with 1 if the run is incomplete."""

from __future__ import annotations

from typing import Any

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, op_job

GROUPS = (
    Group("run", (flag("run", "the run's id or its first characters, with or without run: before it"),)),
    groups.JSON,
    groups.STORE,
)
EXAMPLES = ("trtops inspect run 8d6e3f", "trtops inspect run run:8d6e3f --json")


def plan(args: Options) -> Job:
    """Return the job."""
    return op_job(args, "inspect_run", args.run, store="reads", code=_incomplete)


def _incomplete(found: Any) -> int:
    return 0 if found.to_json()["whole"] else 1
