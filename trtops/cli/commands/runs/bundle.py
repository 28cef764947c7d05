"""Pack a run into one zip with which a stranger repeats its verdict: python reproduce.py, without trtops.

The zip holds model, inputs, golden outputs, tactics, caches, environment, the releases to install, and a bug report filled
in. Its script is tried before the zip is written: exit code 3 if it does not repeat the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say_json, say_result

if TYPE_CHECKING:
    from trtops.ops.bundling.op import BundleConfig

GROUPS = (
    Group(
        "bundle",
        (
            Flag(names=("run",), help="a build's run, or an iteration's"),
            Flag(names=("-o", "--output"), to="zip", shown="FILE", help="the zip (default: experiment and run)"),
            Flag(names=("--materials",), shown="FOLDER", help="where what the run did not keep lies"),
            Flag(
                names=("--script-timeout",),
                usual="600",
                convert=float,
                shown="SECONDS",
                help="how long the script may take",
            ),
        ),
    ),
    groups.REMEMBERED,
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs bundle 8d6e3f -o fault.zip",)


@dataclass(frozen=True)
class Plan:
    """What to pack.

    Attributes:
        run: The run's id.
        config: The op's config.
        store: Where it is.
        json: Whether to print JSON.
    """

    run: str
    config: BundleConfig
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    given = configs.given(
        output=args.zip,
        materials=args.materials,
        timeout_seconds=args.script_timeout,
    )
    config = ops.BundleConfig(allow_scripts=bool(args.allow_scripts), **given)
    return Plan(args.run, config, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Pack, and print."""
    result = ops.bundle(plan.run, plan.config, tracker=memory.opened(plan.store))
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0
