"""List runs of the store, newest first."""

from __future__ import annotations

import time
from typing import Any

from trtops.cli import choosing, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, op_job
from trtops.cli.logs import say, say_table

GROUPS = (
    Group(
        "which",
        (
            *(choosing.EXPERIMENT, choosing.KIND, choosing.VERDICT, choosing.TAGS),
            flag(
                "--status CHOICE",
                "only with this status",
                usual="any",
                choices=("running", "finished", "failed", "killed"),
            ),
            flag("--parent RUN", "only below this run"),
            flag("-n --limit N", "maximum number of runs", to="limit", default=50),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs list --experiment resnet50 --verdict bad", "trtops runs list --kind debug_build --json")


def plan(args: Options) -> Job:
    """Return the job."""
    names = ("experiment", "kind", "verdict", "status", "parent", "limit")
    filters = {name: getattr(args, name) for name in names} | {"tags": dict(args.tag or ())}
    return op_job(args, "list_runs", store="reads", show=_show, **filters)


def _show(rows: list[Any], store: str | None) -> None:
    header = ("run", "experiment", "kind", "status", "verdict", "started", "name")
    cells = (
        (row.id, row.experiment, row.kind, row.status, row.verdict or "-", _time(row.start_time), row.name)
        for row in rows
    )
    if rows:
        say_table(header, cells)
    else:
        say("No such runs.")


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
