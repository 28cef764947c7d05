"""Re-evaluate stored runs with other tolerances. Nothing runs and the store does not change. Exits with 1 if one is bad."""

from __future__ import annotations

from typing import Any

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, tracker
from trtops.cli.logs import say, say_json

GROUPS = (
    Group("runs", (flag("runs+", "ids of runs with a comparison, or their first characters"),)),
    groups.STATISTICS,
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs evaluate 8d6e3f --check-error-stat max --atol 1e-3 --rtol 1e-2",)


def plan(args: Options) -> Job:
    """Return the job."""
    tolerances = configs.tolerances(args)
    if tolerances is None:
        raise UsageError("give tolerances, such as --atol 1e-3 --rtol 1e-2")
    return Job(call=_evaluate, args=(tuple(args.runs), tolerances, args.store, bool(args.json)))


def _evaluate(runs: tuple[str, ...], tolerances: Any, place: str | None, as_json: bool) -> int:
    evaluated = ops.reevaluate(runs, tolerances, tracker("reads", place))
    if as_json:
        say_json([each.to_dict() for each in evaluated])
    for each in () if as_json else evaluated:
        say(f"{each.id} {each.name}: {each.verdict} (was {each.before or '-'})")
        for reason in each.reasons:
            say(f"    {reason}")
    return 0 if all(each.verdict == "good" for each in evaluated) else 1
