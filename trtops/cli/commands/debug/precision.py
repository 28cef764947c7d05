"""Find the nodes that must stay in FP32 so that a 16-bit model is accurate enough.

No GPU is needed: 16-bit results are rounded as a GPU rounds them, and compared with the model's own; --trt builds
engines instead. With --check a command evaluates: it reads an engine, trtops_debug.engine, or the model in mixed precision
where it says {model}. Exits with 1 if even keeping everything does not help.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import configs, groups, loading, memory, surgery
from trtops.cli.commands.debug import repeat as debug_repeat
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.iterations import Iterations
from trtops.cli.logs import say, say_ending
from trtops.cli.script import Call, Maker, call

if TYPE_CHECKING:
    from trtops.ops.evaluation.command import CommandCheck
    from trtops.ops.evaluation.feeds import DataConfig
    from trtops.ops.search.precision import PrecisionConfig, PrecisionStep
    from trtops.ops.search.repeat import RepeatConfig, RepeatStep

GROUPS = (
    Group("model", (*groups.ONNX_MODEL.flags, *(f for f in groups.MODEL.flags if f.dest == "model_type"))),
    Group(
        "searching",
        (
            Flag(names=("-o", "--output"), to="output", shown="FILE", help="where to write the model in mixed precision"),
            Flag(names=("--exclude-list",), shown="FILE", help="where to write the names of the nodes to keep"),
            Flag(names=("--fastest",), takes="switch", help="measure the sets that pass, and choose the fastest"),
            Flag(names=("--mode",), usual="minimal", choices=("minimal", "bisect", "linear"), help="keep as few nodes as possible, or all from one end of the model"),
            Flag(names=("--dir", "--direction"), usual="forward", to="direction", choices=("forward", "reverse"), help="the end that bisect and linear keep"),
            Flag(names=("-p", "--precision"), usual="float32", to="precision", choices=("float32", "float16"), help="what kept layers of engines compute in: float32, or float16 beside --int8 and --fp8"),
            Flag(names=("--exclude",), takes="many", shown="NODE", help="nodes that stay in FP32 in any case: names, patterns or types"),
            Flag(names=("--max-checks",), usual="no limit", convert=int, shown="N", help="stop after so many checks"),
            Flag(names=("--trt",), takes="switch", help="evaluate by TensorRT engines (up to 10.x)"),
            Flag(names=("--golden-outputs",), shown="FILE", help="outputs that the model in FP32 must give, checked first"),
            Flag(names=("--save-layer-outputs",), shown="FILE", help="where to write the error of every tensor, as JSON"),
            Flag(names=("--mark-all",), takes="switch", help="look at every tensor", idle="--save-layer-outputs looks at every tensor"),
        ),
    ),
    groups.TRACKING, groups.STATISTICS, groups.DATA, groups.ONNX_LOAD, groups.ONNX_SHAPE, groups.CHECK, groups.SORTING,
    groups.ITERATING, groups.REPLAY, groups.TRT_SHAPES, groups.PRECISIONS.without("--fp32"), groups.TRT_TACTICS,
    groups.TRT_CONFIG, groups.TRT_NETWORK.without("--trt-network-func"), groups.TRT_OUTPUTS, groups.TRT_PARSE,
)  # fmt: skip
EXAMPLES = (
    "trtops debug precision model.onnx --fp16 --load-inputs inputs.json -o mixed.onnx",
    "trtops debug precision model.onnx --bf16 --atol 1e-2 --rtol 1e-2 --save-layer-outputs layers.json",
    "trtops debug precision model.onnx --fp16 --check trtops run trtops_debug.engine --trt --load-outputs golden.json",
)
ARTIFACT = "trtops_debug.engine"
MODEL_ARTIFACT = "trtops_debug.onnx"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to search.

    Attributes:
        model: The model, or what makes it.
        name: The model's path.
        config: The op's config.
        feeds: Makes inputs, in place of the config's source.
        writer: Makes what builds or writes candidates; None emulates them.
        engines: Whether candidates are TensorRT engines.
        check: The command that evaluates them; None compares them with the model.
        sorting: What to do about the files that are there then.
        golden: Outputs that the model must give.
        layers: Where to write the error of every tensor.
        experiment: Where to remember it.
        store: Where the memory is.
        exit_on_bad: Whether a bad verdict is exit code 1.
    """

    model: str | Call
    name: str
    config: PrecisionConfig
    feeds: Call | None
    writer: Call | None
    engines: bool
    check: CommandCheck | None
    sorting: RepeatConfig | None
    golden: str | None
    layers: str | None
    experiment: str | None
    store: str | None
    exit_on_bad: bool = False


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    if args.model_type not in (None, "onnx"):
        raise UsageError(f"--model-type {args.model_type}: only ONNX models are searched; convert the model first")
    check, artifact = _command_and_artifact(args)
    engines = artifact.endswith(".engine") if check else bool(args.trt)
    if not engines and (args.int8 or args.fp8 or (args.fp16 and args.bf16) or args.precision == "float16"):
        raise UsageError(
            "a model in mixed precision has FP32 and one of FP16 and BF16; what else there is takes engines: add --trt, or "
            "let the check read one"
        )
    feeds = None if check else configs.made_up_data(args)
    model = surgery.model(args)
    if args.golden_outputs and (check is not None or feeds is not None or not isinstance(model, str)):
        raise UsageError(
            "--golden-outputs is checked on the model file as it is, with data of --load-inputs or --seed, and without "
            "--check; check them first by `trtops run MODEL --onnxrt --load-outputs FILE`"
        )
    return Plan(
        model=model,
        name=args.model_file,
        config=_search_config(args, evaluated=check is not None, made_up=feeds is not None),
        feeds=feeds,
        writer=_candidate_writer(args, artifact, engines) if check or engines else None,
        engines=engines,
        check=check,
        sorting=(
            debug_repeat.repeat_config(args.but(until=1, load_debug_replay=None, save_debug_replay=None), artifact)
            if check
            else None
        ),
        golden=args.golden_outputs,
        layers=args.save_layer_outputs,
        experiment=args.experiment,
        store=args.store if args.experiment else None,
        exit_on_bad=bool(args.exit_on_bad or args.experiment or check is None),
    )


def _command_and_artifact(args: Asked) -> tuple[CommandCheck | None, str]:
    """The command, and the file that it reads."""
    if not args.check:
        return None, ARTIFACT
    says_model = any("{model}" in word for word in args.check)
    artifact = args.iter_artifact or (MODEL_ARTIFACT if says_model else ARTIFACT)
    if not artifact.endswith((".engine", ".onnx")):
        raise UsageError(f"--iter-artifact {artifact}: expected an ending that says what to write, .engine or .onnx")
    return debug_repeat.check_of(args, artifact), artifact


def _search_config(args: Asked, *, evaluated: bool, made_up: bool) -> PrecisionConfig:
    compared = (
        {} if evaluated else configs.data_options(args, made_up=made_up) | {"tolerances": configs.tolerances(args)}
    )
    return ops.PrecisionConfig(
        to="bf16" if args.bf16 and not args.fp16 else "fp16",
        exclude=tuple(args.exclude or ()),
        output=args.output,
        exclude_list=args.exclude_list,
        fastest=bool(args.fastest),
        load_replay=args.load_debug_replay,
        save_replay=args.save_debug_replay,
        **compared,
        **configs.given(mode=args.mode, direction=args.direction, max_checks=args.max_checks),
    )


def _candidate_writer(args: Asked, artifact: str, engines: bool) -> Call:
    """What writes a candidate."""
    if not engines:
        return call("trtops.ops", "ModelWriter", path=artifact)
    args = args.but(
        model_type="onnx",
        fp16=args.fp16 or not (args.bf16 or args.fp8 or args.int8),
        precision_constraints=args.precision_constraints or [("", "obey")],
        **dict.fromkeys(("fp32", "onnx_outputs", "onnx_exclude_outputs", "onnx_outputs_by_type", "save_onnx")),
    )
    return call(
        "trtops.ops", "EngineWriter", network=loading.network(args), config=loading.builder_config(args), path=artifact,
        kept_in=args.precision, save_timing_cache=args.save_timing_cache or args.timing_cache,
    )  # fmt: skip


def execute(plan: Plan) -> int:
    """Search, and print."""
    if plan.engines:
        ops.require_layer_precisions()  # before anything is run
    make, iterations = Maker(), Iterations()
    model = make(plan.model)
    if plan.golden is not None and not _gives_golden_outputs(plan, plan.golden):
        return 1
    with contextlib.ExitStack() as stack:
        result = ops.precision(
            model,
            plan.config,
            feeds=make(plan.feeds),
            **_evaluating_options(plan, make, stack),
            tracker=memory.kept(plan.experiment, plan.store),
            experiment=plan.experiment,
            file=plan.name,
            progress=lambda step: _say_step(step, iterations),
        )
    if plan.layers is not None:
        _write_layers(plan, model, make(plan.feeds))
    iterations.tell_all()
    say(result.text())
    if plan.experiment is not None:
        say_ending(result, plan.store)
    return 1 if plan.exit_on_bad and result.verdict != "good" else 0


def _evaluating_options(plan: Plan, make: Maker, stack: contextlib.ExitStack) -> dict[str, Any]:
    """How candidates are evaluated, as options of the op."""
    if plan.writer is None:
        return {}
    writer = make(plan.writer)
    if plan.check is None or plan.sorting is None:
        return {"runner": writer.runner}
    evaluate = ops.checking_candidates(writer, plan.check, plan.sorting, _say_output)
    return {"evaluate": stack.enter_context(evaluate)}


def _gives_golden_outputs(plan: Plan, golden: str) -> bool:
    """Whether the model gives these outputs on this data, in FP32."""
    config = plan.config
    check = ops.CheckConfig(tolerances=config.tolerances, latency_runs=0, **_same_data(config))
    result = ops.compare(
        str(plan.model), golden, ops.CompareConfig(check=check), tracker=memory.kept_or_forgotten(None, None)
    )
    if result.verdict != "good":
        say(f"The model in FP32 does not give the golden outputs on this data: {'; '.join(result.reasons)}")
    return result.verdict == "good"


def _same_data(config: DataConfig) -> dict[str, Any]:
    """The data of a config, as keywords for another."""
    return {"data": config.data, "iterations": config.iterations, "seed": config.seed}


def _write_layers(plan: Plan, model: Any, feeds: Any) -> None:
    """Write the error of every tensor in the lower precision, as JSON."""
    config = plan.config
    looked = ops.AccuracyConfig(tolerances=config.tolerances, **_same_data(config))
    result = ops.accuracy(model, ops.Emulated(config.to, config.exclude), looked, feeds=feeds)
    save_bytes(result.to_json().encode(), str(plan.layers))


def _say_step(step: PrecisionStep, iterations: Iterations) -> None:
    measured = f", {step.excess:.3g} of what is allowed" if 0 < step.excess < float("inf") else ""
    say(f"{step.kept} nodes in FP32: {'good' if step.good else 'bad'}{measured}")
    iterations.ended(step.good)


def _say_output(step: RepeatStep) -> None:
    if step.output:
        say(step.output.rstrip())
