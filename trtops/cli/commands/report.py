"""The command ``trtops report``."""

from __future__ import annotations

from typing import Any

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.logs import say


@command(
    Group(
        "report",
        flag("run", "the run's id: a build, a campaign, a proof, a gate, an audit"),
        flag("other?", "another run to compare with the first"),
        flag("-o --output FILE", "the file to write (default: report-<run>.html)", to="output"),
    ),
    groups.STORE,
    groups.JSON,
    examples=("trtops report 8d6e3f", "trtops report 8d6e3f 1a2b3c -o difference.html"),
)
def report(args: Options) -> Job:
    """Write a report of a run, or of two runs side by side, as one self-contained HTML file."""

    def show(written: Any, store: str | None) -> None:
        say(written.path)

    return op_job(args, "report", args.run, args.other, output=args.output, store="writes", show=show)
