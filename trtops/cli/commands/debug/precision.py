"""The command ``trtops debug precision``."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import configs, groups, loading
from trtops.cli.commands import debug
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, tracker
from trtops.cli.logs import say, say_progress
from trtops.cli.script import Call, call, product

if TYPE_CHECKING:
    from trtops.ops.search.delta import Step
    from trtops.ops.search.precision import PrecisionConfig
    from trtops.ops.search.repeat import RepeatStep

ARTIFACT = "trtops_debug.engine"
MODEL_ARTIFACT = "trtops_debug.onnx"


@command(
    Group("model", groups.ONNX_MODEL, groups.MODEL_TYPE, groups.INPUT_SHAPES),
    Group(
        "search",
        flag("-o --output FILE", "where to write the model in mixed precision"),
        flag("-p --precision {float32,float16}", "what kept layers of engines compute in", usual="float32"),
        flag("--trt", "compare TensorRT engines (up to 10.x)"),
        flag("--onnxrt", "search in ONNX Runtime", idle="without --trt, the search runs in ONNX Runtime"),
        flag("--golden-outputs FILE", "outputs that the model in FP32 must give, checked first"),
        flag("--save-layer-outputs FILE", "where to write the error of every tensor, as JSON"),
        flag("--mark-all", "look at every tensor", idle="--save-layer-outputs looks at every tensor"),
    ),
    configs.config_flags(
        "search",
        "PrecisionConfig",
        {"direction": "--dir --direction"},
        skip="data tolerances to output profiles load_replay save_replay",
    ),
    groups.TRACKING,
    groups.STATISTICS,
    groups.DATA,
    groups.ONNX_LOAD,
    groups.ONNX_SHAPE,
    groups.CHECK,
    groups.SORTING,
    groups.ITERATING,
    groups.REPLAY,
    groups.TRT_SHAPES,
    groups.PRECISIONS.without("--fp32"),
    groups.TRT_TACTICS,
    groups.TRT_CONFIG,
    groups.TRT_NETWORK.without("--trt-network-func"),
    groups.TRT_OUTPUTS,
    groups.TRT_PARSE,
    examples=("trtops debug precision model.onnx --fp16 --load-inputs inputs.json -o mixed.onnx",),
)
def precision(args: Options) -> Job:
    """Find the nodes that must stay in FP32 so that a 16-bit model is accurate enough.

    No GPU is needed: 16-bit results are rounded as a GPU rounds them, and compared with the model's own; --trt builds
    engines instead. With --check a command checks: it reads an engine, trtops_debug.engine, or the model in mixed
    precision where it says {model}. Exits with 1 if even keeping everything does not help.
    """
    if args.model_type not in (None, "onnx"):
        raise UsageError(f"--model-type {args.model_type}: only ONNX models are searched; convert the model first")
    reads_model = any("{model}" in word for word in args.check or ())
    artifact = ARTIFACT
    if args.check:
        artifact = args.iter_artifact or (MODEL_ARTIFACT if reads_model else ARTIFACT)
    check = debug.check_of(args, artifact)
    engines = artifact.endswith(".engine") if check else bool(args.trt)
    if not engines and (args.int8 or args.fp8 or (args.fp16 and args.bf16) or args.precision == "float16"):
        raise UsageError(
            "other precisions than one of FP16 and BF16 need engines: add --trt, or let the check read one"
        )
    sorting, feeds = None, None
    if check:
        args.ignore(groups.STATISTICS, groups.DATA, "trt")
        sorting = debug.repeat_config(args.but(until=1, load_debug_replay=None, save_debug_replay=None), artifact)
    else:
        args.ignore(groups.SORTING, groups.ITERATING.without("--exit-on-bad"), groups.CHECK)
        feeds = configs.random_data(args)
    if not check and not engines:
        args.ignore(groups.ENGINE_BUILD.without("--fp16", "--bf16", "--fp8", "--int8", "--trt-min-shapes"), "plugins")
    source, golden, layers = loading.changed_model(args), args.golden_outputs, args.save_layer_outputs
    if golden and (check is not None or feeds is not None or not isinstance(source, str)):
        raise UsageError("--golden-outputs needs an unchanged model, data of --load-inputs or --seed, and no --check")
    writer = _candidate_writer(args, artifact, engines) if check or engines else None
    config = _search_config(args, has_check=check is not None, random=feeds is not None)
    search = debug.Search.of(args, exit_on_bad=check is None)

    def run() -> int:
        if engines:
            ops.require_layer_precisions()  # before anything is run
        model, engine_writer = product(source), product(writer)
        searched = config if feeds is None else replace(config, data=product(feeds))
        if golden is not None and (reasons := _golden_differences(model, golden, config)):
            say(f"The model in FP32 does not give the golden outputs on this data: {reasons}")
            return 1
        evaluation: dict[str, Any] = {}
        with contextlib.ExitStack() as stack:
            if check is not None:
                assert sorting is not None
                checking = ops.checking_candidates(engine_writer, check, sorting, _say_output)
                evaluation["evaluate"] = stack.enter_context(checking)
            elif engines:
                evaluation["runner"] = engine_writer.runner
            result = search.run(ops.precision, model, searched, progress=_say_step, **evaluation)
        if layers is not None:
            accuracy = ops.AccuracyConfig(tolerances=config.tolerances, **_data(searched))
            errors = ops.accuracy(model, ops.Emulated(config.to, config.exclude), accuracy)
            save_bytes(errors.to_json().encode(), layers)
        return search.end(result)

    return run


def _search_config(args: Options, *, has_check: bool, random: bool) -> PrecisionConfig:
    values: dict[str, Any] = {}
    if not has_check:
        values = configs.data_values(args, random=random)
        values |= {"tolerances": configs.tolerances(args), "profiles": configs.profiles(args) or None}
    config: PrecisionConfig = configs.make(
        args,
        "PrecisionConfig",
        values,
        to="bf16" if args.bf16 and not args.fp16 else "fp16",
        output=args.output,
        load_replay=args.load_debug_replay,
        save_replay=args.save_debug_replay,
    )
    return config


def _data(config: PrecisionConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("data", "input_shapes", "iterations", "seed")}


def _golden_differences(model: Any, golden: str, config: PrecisionConfig) -> str:
    """Compare the model with saved outputs; return why they differ, or nothing."""
    check = ops.CheckConfig(tolerances=config.tolerances, latency_runs=0, **_data(config))
    compared = ops.compare(model, golden, check, tracker=tracker("temporary", None))
    return "" if compared.verdict == "good" else "; ".join(compared.reasons)


def _say_step(step: Step) -> None:
    measured = f", {step.excess:.3g} of what is allowed" if 0 < (step.excess or 0) < float("inf") else ""
    say_progress(f"{step.size} nodes in FP32: {'good' if step.verdict == 'pass' else 'bad'}{measured}")


def _say_output(step: RepeatStep) -> None:
    if step.output:
        say(step.output.rstrip())


def _candidate_writer(args: Options, artifact: str, engines: bool) -> Call:
    """Return the writer of a candidate."""
    if not engines:
        return call(ops.ModelWriter, path=artifact)
    args = args.but(
        model_type="onnx",
        fp16=args.fp16 or not (args.bf16 or args.fp8 or args.int8),
        precision_constraints=args.precision_constraints or [("", "obey")],
        **dict.fromkeys(("fp32", "onnx_outputs", "onnx_exclude_outputs", "onnx_outputs_by_type", "save_onnx")),
    )
    return call(
        ops.EngineWriter,
        network=loading.network(args),
        config=loading.builder_config(args),
        path=artifact,
        kept_in=args.precision,
        save_timing_cache=args.save_timing_cache or args.timing_cache,
    )
