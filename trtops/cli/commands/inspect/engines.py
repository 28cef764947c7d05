"""Put two TensorRT engines side by side: layers by their ONNX nodes, and reformats between them, where the engines differ most first.

Takes engine files, the engine inspector's JSON (trtexec's --exportLayerInfo), and runs of the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say_json, say_result

if TYPE_CHECKING:
    from trtops.ops.model.inspect.engines import InspectEnginesConfig

GROUPS = (
    Group(
        "engines",
        (
            Flag(names=("a",), help="an engine, the inspector's JSON about one, or a run"),
            Flag(names=("b",), help="the other one"),
            Flag(
                names=("--layer-times",),
                takes="many",
                shown="FILE",
                help="times of the layers of both, in their order: what trtexec's --exportProfile wrote",
            ),
            Flag(names=("--profile",), takes="switch", help="time the layers here, which takes a GPU"),
            Flag(
                names=("--load-inputs",),
                shown="FILE",
                help="saved inputs to time the layers with, in place of random data",
            ),
            Flag(
                names=("--show",), convert=int, shown="N", help="how many boundaries and layers to list (default: 20)"
            ),
        ),
    ),
    groups.TRACKING,
    groups.JSON,
)
EXAMPLES = (
    "trtops inspect engines fp16.engine int8.engine --profile",
    "trtops inspect engines before.json after.json --layer-times before_times.json after_times.json",
    "trtops inspect engines 8d6e3f 41c0aa --show 50",
)


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Attributes:
        config: The op's config.
        experiment: Where to remember it.
        store: Where the memory is.
        json: Whether to print JSON.
    """

    config: InspectEnginesConfig
    experiment: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    times = args.layer_times or [None, None]
    if len(times) != 2:
        raise UsageError("--layer-times takes two files, one for each engine")
    if args.load_inputs is not None and not args.profile:
        raise UsageError("--load-inputs is for what layers are timed with; add --profile")
    config = ops.InspectEnginesConfig(
        a=args.a,
        b=args.b,
        times_a=times[0],
        times_b=times[1],
        profile=bool(args.profile),
        data=ops.DataConfig(data=args.load_inputs),
        **configs.given(shown=args.show),
    )
    return Plan(config, args.experiment, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Compare, and print."""
    stored = not all(Path(source).suffix for source in (plan.config.a, plan.config.b))
    tracker = memory.existing(plan.store) if stored else memory.kept(plan.experiment, plan.store)
    result = ops.inspect_engines(plan.config, tracker=tracker, experiment=plan.experiment)
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0
