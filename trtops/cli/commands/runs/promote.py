"""Accept a good run's engine for everybody: built again from its tactics on this machine, verified, and registered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_ending, say_json

if TYPE_CHECKING:
    from trtops.ops.campaign.promote import PromoteConfig

GROUPS = (
    Group(
        "run",
        (
            Flag(names=("run",), help="a good build's run, or a good iteration's"),
            Flag(names=("--model",), shown="FILE", help="the ONNX file, where it is not where the run found it"),
            Flag(names=("--name",), help="the registered model (default: the model file's name)"),
            Flag(
                names=("--build-timeout",),
                usual="1800",
                convert=float,
                shown="SECONDS",
                help="how long the build may take",
            ),
        ),
    ),
    groups.REMEMBERED,
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs promote 8d6e3f",)


@dataclass(frozen=True)
class Plan:
    """What to accept.

    Attributes:
        run: The run's id.
        config: The op's config.
        store: Where it is.
        json: Whether to print JSON.
    """

    run: str
    config: PromoteConfig
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    given = {"model": args.model, "name": args.name, "timeout_seconds": args.build_timeout}
    given = {name: value for name, value in given.items() if value is not None}
    config = ops.PromoteConfig(**given, allow_scripts=bool(args.allow_scripts))
    return Plan(args.run, config, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Promote, and print."""
    try:
        result = ops.promote(plan.run, plan.config, tracker=memory.existing(plan.store))
    finally:
        ops.close_benches()
    if plan.json:
        say_json(result.to_dict())
    else:
        say(f"Version {result.version} of {result.name!r} is accepted as {result.alias}, from run {result.run_id}")
        say_ending(result, plan.store)
    return 0
