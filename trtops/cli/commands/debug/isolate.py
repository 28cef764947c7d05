"""Find the smallest window of nodes that goes wrong on its own, or that mends the model when it is kept apart.

For regions whose inside a builder does not show. With --marks: the fewest tensors that take the error away when they are
outputs. Exits with 1 if the model's outputs are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say_json, say_result
from trtops.terminal import progress

if TYPE_CHECKING:
    from trtops.ops.search.isolation.marking import IsolationConfig
    from trtops.spec import BuildConfig

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "isolating",
        (
            Flag(names=("--marks",), takes="switch", help="the fewest tensors to mark as outputs, in place of a window"),
            Flag(names=("--max-builds",), usual="200", convert=int, shown="N", help="builds at most"),
        ),
    ),
    groups.JSON, groups.TRACKING, configs.BACKEND,
    groups.STATISTICS,
    groups.SOURCE, groups.SPEC,
)  # fmt: skip
EXAMPLES = (
    "trtops debug isolate model.onnx --trt --fp16",
    "trtops debug isolate model.onnx --trt --fp16 --marks",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to isolate.

    Attributes:
        model: The model.
        build: How engines are built.
        config: The op's config.
        marks: Whether tensors are looked for, and no window.
        experiment: Where to remember it.
        store: Where the memory is.
        json: Whether to print JSON.
    """

    model: str
    build: BuildConfig
    config: IsolationConfig
    marks: bool
    experiment: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    config = ops.IsolationConfig(
        tolerances=configs.tolerances(args), **configs.data_options(args), **configs.given(max_builds=args.max_builds)
    )
    return Plan(
        model=args.model_file,
        build=configs.build_config(args, args.backend or "tensorrt"),
        config=config,
        marks=bool(args.marks),
        experiment=args.experiment,
        store=args.store if args.experiment else None,
        json=bool(args.json),
    )


def execute(plan: Plan) -> int:
    """Search, and print."""
    search = ops.find_marks if plan.marks else ops.isolate
    tracker = memory.kept(plan.experiment, plan.store)
    with progress("Isolating", "builds") as bar:
        result = search(
            plan.model, plan.build, plan.config, tracker=tracker, experiment=plan.experiment, progress=bar.update
        )
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1
