"""Show a calibration cache, or the differences of two: files of either format, or run:<id>. Exits with 1 if they differ."""

from __future__ import annotations

from typing import Any

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, Store, op_job
from trtops.tracking.ids import RUN_PREFIX

GROUPS = (
    Group(
        "caches",
        (
            flag("cache", "a calibration cache, or run:<id>"),
            flag("other?", "another one to compare with"),
            flag("--ratio X", "ranges further apart count as changed", default=1.25),
        ),
    ),
    groups.JSON,
    groups.STORE,
)
EXAMPLES = ("trtops inspect calibration int8.cache", "trtops inspect calibration old.cache new.cache --ratio 2")


def plan(args: Options) -> Job:
    """Return the job."""
    stored = any(str(cache).startswith(RUN_PREFIX) for cache in (args.cache, args.other))
    store: Store = "reads" if stored else "none"
    if args.other is None:
        return op_job(args, "inspect_calibration", args.cache, store=store)
    return op_job(args, "compare_calibrations", args.cache, args.other, args.ratio, store=store, code=_differs)


def _differs(found: Any) -> int:
    return 0 if found.same else 1
