"""The command ``trtops inspect diff-tactics``."""

from __future__ import annotations

from typing import Any

from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, no_verdict, op_job
from trtops.cli.logs import say, say_result


@command(
    Group(
        "builds",
        flag("records*", "a good record and a bad one, as --good and --bad"),
        flag("--dir FOLDER", "a folder with good/ and bad/ in it"),
        flag("--of-experiment NAME", "all evaluated builds of an experiment in the store"),
    ),
    configs.config_flags("builds", "DiffTacticsConfig", skip="experiment folder also"),
    groups.TRACKING,
    groups.JSON,
    examples=(
        "trtops inspect diff-tactics --dir replays",
        "trtops inspect diff-tactics --good good_replays --bad bad_replay.json",
        "trtops debug diff-tactics build1.json build2.json",
        "trtops inspect diff-tactics --runs 8d6e3f",
    ),
)
def diff_tactics(args: Options) -> Job:
    """Find the tactic that makes builds bad.

    From folders or files of good and bad tactic records, or from runs of the store.
    """
    given: dict[str, str | None] = {"experiment": args.of_experiment, "folder": args.dir}
    if args.records:
        if len(args.records) != 2 or args.peek("DiffTacticsConfig.good") or args.peek("DiffTacticsConfig.bad"):
            raise UsageError("two records are compared: the good one, then the bad one")
        given |= dict(zip(("good", "bad"), args.records))
    config = configs.make(args, "DiffTacticsConfig", given)
    return op_job(
        args,
        "diff_tactics",
        config,
        store="reads" if config.runs or config.experiment is not None else "temporary",
        experiment=args.experiment,
        show=_show,
        code=no_verdict,
    )


def _show(result: Any, store: str | None) -> None:
    for line in result.difference_lines():
        say(line)
    say_result(result, store)
