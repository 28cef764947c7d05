"""Show params and numbers of runs side by side; by default those that differ."""

from __future__ import annotations

from trtops import ops
from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, tracker
from trtops.cli.logs import say, say_json, say_table

GROUPS = (
    Group(
        "runs",
        (
            flag("runs+", "ids of runs, or their first characters"),
            flag("--all", "also show what is equal"),
        ),
    ),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs compare 8d6e3f 1a2b3c",)


def plan(args: Options) -> Job:
    """Return the job."""
    return Job(call=_compare, args=(tuple(args.runs), bool(args.all), args.store, bool(args.json)))


def _compare(runs: tuple[str, ...], show_all: bool, place: str | None, as_json: bool) -> int:
    store = tracker("reads", place)
    ids = [store.whole_id(run) for run in runs]
    lines = [line for line in ops.side_by_side(ids, store) if show_all or not line.same]
    if as_json:
        say_json([line.to_dict() for line in lines])
    elif lines:
        say_table(("", *(run[:8] for run in ids)), ((line.name, *(v or "-" for v in line.values)) for line in lines))
    else:
        say("Nothing differs.")
    return 0
