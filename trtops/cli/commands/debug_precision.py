"""Find the nodes that must stay in FP32 so that a 16-bit model is accurate enough.

No GPU is needed: 16-bit results are rounded as a GPU rounds them; --trt builds engines instead. Exits with 1 if even
keeping everything does not help.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtops.cli import configs, groups
from trtops.cli.flags import Flag, Group

if TYPE_CHECKING:
    from trtops.comparator.report import Tolerances
    from trtops.ops.precision import PrecisionConfig

_JUDGED = (
    "sets of nodes are judged by --atol, --rtol and their like against the model's own FP32 outputs; an outside command can "
    "judge the result: write it with -o and run it"
)
GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "searching",
        (
            Flag(names=("-o", "--output"), to="output", shown="FILE", help="where to write the model in mixed precision"),
            Flag(names=("--exclude-list",), shown="FILE", help="where to write the names of the nodes to keep"),
            Flag(names=("--fp16",), takes="switch", to="lower", value="fp16", help="lower to FP16, which is the default"),
            Flag(names=("--bf16",), takes="switch", to="lower", value="bf16", help="lower to BF16"),
            Flag(names=("--mode",), choices=("minimal", "bisect", "linear"), help="keep as few nodes as possible, or all from one end of the model"),
            Flag(names=("--dir", "--direction"), to="direction", choices=("forward", "reverse"), help="the end that bisect and linear keep"),
            Flag(names=("-p", "--precision"), choices=("float32",), help="what kept nodes compute in", idle="it is float32"),
            Flag(names=("--exclude",), takes="many", shown="NODE", help="nodes that stay in FP32 in any case: names, patterns or types"),
            Flag(names=("--max-checks",), convert=int, shown="N", help="stop after so many checks"),
            Flag(names=("--trt",), takes="switch", help="judge by TensorRT engines (up to 10.x)"),
            Flag(names=("--golden-outputs",), shown="FILE", help="outputs that the model in FP32 must give, checked first"),
            Flag(names=("--save-layer-outputs",), shown="FILE", help="where to write the error of every tensor, as JSON"),
            Flag(names=("--mark-all",), takes="switch", help="look at every tensor", idle="--save-layer-outputs looks at every tensor"),
            Flag(names=("--check", "--check-inference"), takes="rest", help="", refuse=_JUDGED),
        ),
    ),
    groups.TRACKING,
    groups.STATISTICS,
    groups.SOURCE,
)  # fmt: skip
EXAMPLES = (
    "trtops debug precision model.onnx --fp16 --load-inputs inputs.json -o mixed.onnx",
    "trtops debug precision model.onnx --bf16 --atol 1e-2 --rtol 1e-2 --save-layer-outputs layers.json",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to search.

    Attributes:
        model: The model.
        config: The op's config.
        trt: Whether TensorRT engines are judged.
        golden: Outputs that the model must give.
        layers: Where to write the error of every tensor.
        experiment: Where to remember it.
        store: Where the memory is.
    """

    model: str
    config: PrecisionConfig
    trt: bool
    golden: str | None
    layers: str | None
    experiment: str | None
    store: str | None


def plan(args: argparse.Namespace) -> Plan:
    """What the options stand for."""
    from trtops.ops.precision import PrecisionConfig

    given = {
        "to": args.lower, "mode": args.mode, "direction": args.direction, "iterations": args.iterations, "seed": args.seed,
        "max_checks": args.max_checks,
    }  # fmt: skip
    config = PrecisionConfig(
        tolerances=configs.tolerances(args),
        data=configs.data_source(args),
        exclude=tuple(args.exclude or ()),
        output=args.output,
        exclude_list=args.exclude_list,
        **{name: value for name, value in given.items() if value is not None},
    )
    return Plan(
        model=args.model_file,
        config=config,
        trt=bool(args.trt),
        golden=args.golden_outputs,
        layers=args.save_layer_outputs,
        experiment=args.experiment,
        store=args.store,
    )


def execute(plan: Plan) -> int:
    """Search, and tell."""
    from trtops.ops.precision import emulated_runner, precision, weakly_typed_runner
    from trtops.tracking.base import NO_RUN, tracked

    if plan.golden is not None and not _gives(plan, plan.golden):
        return 1
    runner = weakly_typed_runner if plan.trt else emulated_runner
    if plan.trt:
        from trtops.backend.trt import library

        library.load()
    if plan.experiment is None:
        result = precision(plan.model, plan.config, runner=runner, run=NO_RUN, progress=_tell)
    else:
        with tracked(configs.opened(plan.store), plan.experiment, "precision", kind="triage") as run:
            result = precision(plan.model, plan.config, runner=runner, run=run, progress=_tell)
            run.finish("bad" if result.verdict == "bad" else "good")
    if plan.layers is not None:
        _write_layers(plan)
    return _show(result)


def _gives(plan: Plan, golden: str) -> bool:
    """Whether the model gives these outputs on this data, in FP32."""
    from trtops.cli.logs import say
    from trtops.ops.check import CheckConfig
    from trtops.ops.compare import CompareConfig, compare
    from trtops.tracking.memory import MemoryTracker

    config = plan.config
    tolerances: Tolerances | None = config.tolerances
    check = CheckConfig(
        data=config.data, iterations=config.iterations, seed=config.seed, tolerances=tolerances, latency_runs=0
    )
    result = compare(plan.model, golden, CompareConfig(check=check), tracker=MemoryTracker())
    if result.verdict != "good":
        say(f"The model in FP32 does not give the golden outputs on this data: {'; '.join(result.reasons)}")
    return result.verdict == "good"


def _write_layers(plan: Plan) -> None:
    from trtops.backend.common import save_bytes
    from trtops.ops.triage import TriageConfig, emulated, triage

    config = plan.config
    looked = TriageConfig(
        tolerances=config.tolerances, data=config.data, iterations=config.iterations, seed=config.seed
    )
    result = triage(plan.model, emulated(config.to, config.exclude), looked)
    save_bytes(result.to_json().encode(), str(plan.layers))


def _tell(step: Any) -> None:
    from trtops.cli.logs import say

    group = f" ({step.group})" if step.group else ""
    say(f"{step.kept} nodes in FP32{group}: {'good' if step.good else 'bad'}, {step.excess:.3g} of what is allowed")


def _show(result: Any) -> int:
    from trtops.cli.logs import say
    from trtops.ops.report import table

    told = {
        "good": f"All {result.nodes} nodes may be lowered.",
        "mixed": f"{len(result.keep)} of {result.nodes} nodes must stay in FP32: {', '.join(result.exclude)}",
        "bad": "Even with every node in FP32 the tolerances are not met.",
    }
    say(told[result.verdict])
    rows = (
        (
            p.label,
            str(p.kept),
            f"{p.excess:.3g}",
            "yes" if p.good else "no",
            "-" if p.latency_ms is None else f"{p.latency_ms:.3f} ms",
        )
        for p in result.points
    )
    say(table(("model", "kept", "error / allowed", "good", "p50"), rows))
    if result.path is not None:
        say(f"Wrote {result.path}")
    return 1 if result.verdict == "bad" else 0
