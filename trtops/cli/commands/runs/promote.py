"""Accept a good run's engine for all users: rebuilt from its tactics on this machine, verified, and registered."""

from __future__ import annotations

from typing import Any

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, tracker
from trtops.cli.logs import say, say_ending, say_json

GROUPS = (
    Group("run", (flag("run", "a good build's run, or a good iteration's"),)),
    configs.config_flags("promotion", "PromoteConfig"),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs promote 8d6e3f",)


def plan(args: Options) -> Job:
    """Return the job."""
    return Job(call=_promote, args=(args.run, configs.make(args, "PromoteConfig"), args.store, bool(args.json)))


def _promote(run: str, config: Any, store: str | None, as_json: bool) -> int:
    try:
        result = ops.promote(run, config, tracker=tracker("reads", store))
    finally:
        ops.close_benches()
    if as_json:
        say_json(result.to_dict())
    else:
        say(f"Version {result.version} of {result.name!r} is accepted as {result.alias}, from run {result.run_id}")
        say_ending(result, store)
    return 0
