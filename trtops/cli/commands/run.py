"""Run a model on several back ends, on the same inputs, and compare what each says with the next, or with saved outputs."""

from __future__ import annotations

import logging
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import groups, loading, memory, values
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_ending
from trtops.cli.script import Call, Deferred, Function, Maker, Name, Source, call, folded, quoted

if TYPE_CHECKING:
    from trtops.ops.evaluation.run import RunConfig

log = logging.getLogger(__name__)

RUNNERS = Group(
    "runners, in the order given",
    (
        Flag(names=("--onnxrt",), takes="runner", to="runners", value="onnxrt", help="ONNX Runtime"),
        Flag(names=("--trt",), takes="runner", to="runners", value="trt", help="TensorRT"),
        Flag(
            names=("--trt-engine",),
            takes="runner",
            to="runners",
            value="trt-engine",
            shown="FILE",
            help="TensorRT with an engine that is there already",
        ),
        Flag(names=("--onnx",), takes="runner", to="runners", value="onnx", help="ONNX's reference implementation"),
        Flag(
            names=("--pluginref",),
            takes="runner",
            to="runners",
            value="pluginref",
            help="reference implementations of plugins, on the CPU",
        ),
        Flag(
            names=("--tf",),
            takes="runner",
            to="runners",
            value="tf",
            help="a TensorFlow model in ONNX Runtime, converted by tf2onnx",
        ),
    ),
)

RUNNING = Group(
    "running",
    (
        Flag(
            names=("--warm-up", "--warm-up-runs"),
            usual="0",
            convert=int,
            shown="N",
            help="inferences before the timed ones",
        ),
        Flag(names=("--use-subprocess",), takes="switch", help="run each runner in a child process of its own"),
        Flag(
            names=("--sequential-runners",),
            takes="switch",
            help="one runner at a time",
            idle="runners never share memory here: each is let go before the next begins",
        ),
        Flag(names=("--save-inputs", "--save-input-data"), shown="PATH", help="where to save the inputs"),
        Flag(names=("--save-input-blob",), shown="FOLDER", help="where to save the inputs as raw bytes"),
        Flag(names=("--save-outputs", "--save-results"), shown="PATH", help="where to save the outputs"),
        Flag(names=("--save-layer-outputs",), shown="PATH", help="as --mark-all --save-outputs PATH"),
        Flag(names=("--save-engine",), shown="FILE", help="where to save the TensorRT engine"),
        Flag(names=("--optimization-profile",), usual="0", convert=int, shown="N", help="profile to run with"),
        Flag(
            names=("--allocation-strategy",),
            usual="static",
            choices=("static", "profile", "runtime"),
            help="device memory for all profiles, for one, or for the shapes at hand",
        ),
        Flag(
            names=("--weight-streaming-budget",),
            convert=values.budget,
            shown="SIZE|PERCENT%",
            help="device memory for streamable weights, or the part of them that is streamed",
        ),
    ),
)

EVALUATION = Group(
    "evaluation",
    (
        Flag(names=("--validate",), takes="switch", help="NaN and infinities in outputs are faults"),
        Flag(
            names=("--load-outputs", "--load-results"),
            takes="many",
            shown="PATH",
            help="saved outputs to compare with; alone, with one another",
        ),
        Flag(
            names=("--postprocess", "--postprocess-func"),
            takes="many",
            convert=values.top_k,
            shown="[OUTPUT:]top-K",
            help="compare the places of the largest elements instead",
        ),
        Flag(
            names=("--postprocess-func-script",),
            convert=values.script("postprocess_outputs"),
            shown="FILE[:FUNCTION]",
            help="a script with a function that changes outputs before they are compared",
        ),
        Flag(
            names=("--gen", "--gen-script"),
            shown="FILE",
            to="gen_script",
            help="write a Python script that does the same, and run nothing; - prints it",
        ),
    ),
)

GROUPS = (
    groups.MODEL, RUNNERS, RUNNING, EVALUATION, groups.THRESHOLDS, groups.COMPARING, groups.DATA, groups.ONNX_LOAD,
    groups.ONNX_OUTPUTS, groups.ONNX_SHAPE, groups.SAVE_ONNX, groups.PROVIDERS, *groups.TRT_BUILD, groups.TRT_LOAD,
    groups.TENSORFLOW, groups.TRACKING,
)  # fmt: skip
EXAMPLES = (
    "trtops run model.onnx --onnxrt --trt --fp16 --rtol 1e-3 --atol 1e-3",
    "trtops run model.onnx --onnxrt --save-inputs inputs.json --save-outputs golden.json",
    "trtops run model.engine --trt --load-inputs inputs.json --load-outputs golden.json",
    "trtops run model.onnx --onnxrt --trt --gen-script compare.py",
)

_LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done.

    Attributes:
        runners: Makes the runners.
        data_loader: Makes the inputs; None is random data.
        compare: Makes the compare functions.
        postprocess: Makes the functions applied before.
        config: The op's config.
        onnx: The model to write, where that is all there is to do.
        gen_script: Where to write a script instead.
        experiment: Where to remember it.
        store: Where the memory is.
        model: The model's path, for the memory.
        command: The command line.
    """

    runners: tuple[Call, ...]
    data_loader: Call | None
    compare: tuple[Any, ...]
    postprocess: tuple[Any, ...]
    config: RunConfig
    onnx: Call | None
    gen_script: str | None
    experiment: str | None
    store: str | None
    model: str
    command: str


def plan(args: Asked) -> Plan:
    """The calls and the config that the options stand for."""
    if args.save_layer_outputs:
        args.onnx_outputs = args.onnx_outputs or ("mark", "all")
        args.save_outputs = args.save_outputs or args.save_layer_outputs
    kinds = {kind for kind, _ in args.runners or ()}
    if {"tf", "onnxrt"} <= kinds:
        raise UsageError(
            "--tf runs the model that tf2onnx makes in ONNX Runtime, and not in TensorFlow, so --onnxrt beside it would be "
            "compared with itself. Save what TensorFlow gives as JSON, and give it by --load-outputs"
        )
    runners = tuple(_runner_call(args, kind, word) for kind, word in args.runners or ())
    if args.gen_script and args.experiment:
        raise UsageError("--gen-script writes what is run, not what is remembered; leave out --experiment")
    compared = len(runners) > 1 or bool(args.load_outputs)
    if compared and args.check_average:
        _check_averageable(args)
    config = ops.RunConfig(
        warm_up=args.warm_up or 0,
        use_subprocess=bool(args.use_subprocess),
        save_inputs=args.save_inputs,
        save_input_blob=args.save_input_blob,
        save_outputs=args.save_outputs,
        load_outputs=tuple(args.load_outputs or ()),
        validate=bool(args.validate),
        fail_fast=bool((compared or args.validate) and args.fail_fast),
        check_average=bool(compared and args.check_average),
        save_accuracy=args.save_accuracy_results if compared else None,
    )
    return Plan(
        runners=runners,
        data_loader=loading.data_loader(args),
        compare=tuple(loading.compare_functions(args)) if compared else (),
        postprocess=tuple(_postprocess_calls(args)),
        config=config,
        onnx=loading.onnx_model(args) if args.save_onnx and not runners else None,
        gen_script=args.gen_script,
        experiment=args.experiment,
        store=args.store if args.experiment else None,
        model=args.model_file or "",
        command=shlex.join(args.words),
    )


def _check_averageable(args: Asked) -> None:
    """Say before anything is run that there would be nothing to average."""
    if args.peek("fail_fast"):
        raise UsageError("--check-average and --fail-fast exclude each other: means need all iterations")
    stats = {word for _, word in args.peek("check_error_stat") or (("", "elemwise"),)}
    simple = "simple" in (args.peek("compare") or ["simple"]) and not args.peek("compare_func_script")
    if simple and "elemwise" in stats:
        raise UsageError(
            "--check-average needs one number of each iteration; add --check-error-stat max, mean, median or quantile"
        )


def _runner_call(args: Asked, kind: str, word: str | None) -> Call:
    if kind in ("trt", "trt-engine"):
        return call(loading.TRT, "TrtRunner", loading.engine(args, word), **_inference_options(args))
    found = loading.model_type(args)
    if kind == "tf" and found == "onnx":
        raise UsageError("--tf runs TensorFlow models (keras, frozen, ckpt), which are converted to ONNX; use --onnxrt")
    if found in ("engine", "trt-network-script"):
        raise UsageError(f"{args.model_file} is no ONNX model, so --{kind} cannot run it; use --trt")
    if kind in ("onnxrt", "tf"):
        return call(loading.ORT, "OnnxrtRunner", _session_call(args, found))
    model = loading.onnx_model(args)
    return call(
        "trtops.backend.pluginref", "PluginRefRunner", model, name=None if kind == "pluginref" else "onnx-reference"
    )


def _session_call(args: Asked, found: str) -> Call:
    level = _LEVELS[args.graph_optimization_level] if args.graph_optimization_level else None
    source: Any = args.model_file
    if found != "onnx" or loading.wants_onnx_changes(args):
        source = call(loading.ONNX, "BytesFromOnnx", loading.onnx_model(args))
    return call(
        loading.ORT, "SessionFromOnnx", source,
        providers=list(args.providers) if args.providers else None,
        graph_optimization_level=Name("onnxruntime", f"GraphOptimizationLevel.{level}") if level else None,
        variable="build_session",
    )  # fmt: skip


def _inference_options(args: Asked) -> dict[str, Any]:
    unit, budget = args.weight_streaming_budget or (None, None)
    return {
        "optimization_profile": args.optimization_profile,
        "allocation_strategy": args.allocation_strategy,
        "weight_streaming_budget": budget if unit == "bytes" else None,
        "weight_streaming_percent": budget if unit == "percent" else None,
    }


def _postprocess_calls(args: Asked) -> Iterator[Any]:
    if args.postprocess:
        yield call(loading.COMPARATOR, "TopKPostprocessFunc", values.per_name(args.postprocess))
    if args.postprocess_func_script:
        yield Function(*args.postprocess_func_script)


def execute(plan: Plan) -> int:
    """Write the script, or run."""
    if plan.gen_script is not None:
        return _write_script(script(plan), plan.gen_script)

    make = Maker()
    if plan.onnx is not None:
        make(plan.onnx)()
    if not plan.runners and not plan.config.load_outputs:
        if plan.onnx is None:
            log.warning("No runners have been selected. Add some, such as --onnxrt --trt, or outputs by --load-outputs")
        return 0
    if any(runner.module == loading.TRT for runner in plan.runners):
        from trtops.backend.trt import library

        library.load()  # what is missing is said before anything is run
    result = ops.run_models(
        make([_for_child(runner) if plan.config.use_subprocess else runner for runner in plan.runners]),
        plan.config,
        data_loader=make(plan.data_loader),
        compare=make(list(plan.compare)) if plan.compare else None,
        postprocess=make(list(plan.postprocess)),
        model=plan.model,
        tracker=memory.kept(plan.experiment, plan.store),
        experiment=plan.experiment,
        params={"command": plan.command},
    )
    for name, count, mean in zip(result.runners, result.iterations, result.mean_ms):
        say(f"{name}: {count} iteration{'s' * (count != 1)}" + (f", {mean:.4g} ms each" if mean is not None else ""))
    if result.reasons:
        say("\n".join(result.reasons))
    if plan.experiment is not None:
        say_ending(result, plan.store)
    return 0 if result.verdict == "good" else 1


def _write_script(text: str, path: str) -> int:
    if path == "-":
        say(text.rstrip())
    else:
        save_bytes(text.encode(), path)
    return 0


def _for_child(runner: Call) -> Call:
    """The runner with its loader to be made in the child: TensorRT's own objects need not cross over."""
    return Call(runner.module, runner.name, (Deferred(runner.args[0]),), runner.kwargs)


def script(plan: Plan) -> str:
    """A Python script that does what the plan does."""
    source = Source()
    logger = source.use("trtops.logger", "G_LOGGER")
    lines = [f"{logger}.module_severity = {logger}.INFO"]
    if plan.onnx is not None:
        lines.append(f"{source.expression(plan.onnx)}()")
    if plan.runners or plan.config.load_outputs:
        source.use_module("sys")
        lines += [*_running_lines(plan, source), *_evaluating_lines(plan, source), "sys.exit(0 if passed else 1)"]
    source.add('\n\nif __name__ == "__main__":')
    for line in lines:
        source.add(folded(line, "    "))
    command = textwrap.fill(plan.command, 110, break_long_words=False, break_on_hyphens=False, subsequent_indent="    ")
    return source.text(f"Does what this does:\n\n{command}\n".replace("\\", "\\\\").replace('"""', "'''"))


def _running_lines(plan: Plan, source: Source) -> Iterator[str]:
    """Lines that run the runners, and read saved outputs."""
    config = plan.config
    options = {
        "data_loader": plan.data_loader,
        "warm_up": config.warm_up or None,
        "use_subprocess": config.use_subprocess or None,
        "save_inputs_path": config.save_inputs,
        "save_input_blob_path": config.save_input_blob,
        "save_outputs_path": config.save_outputs,
    }
    source.add(folded(f"runners = {source.expression(list(plan.runners))}"))
    given = ", ".join(f"{name}={source.expression(value)}" for name, value in options.items() if value is not None)
    comparator = source.use(loading.COMPARATOR, "Comparator")
    yield f"results = {comparator}.run(runners{', ' * bool(given)}{given})"
    if config.validate:
        yield f"passed = {comparator}.validate(results, check_inf=True, fail_fast={config.fail_fast})"
    else:
        yield "passed = True"
    for path in config.load_outputs:
        loaded = source.use(loading.COMPARATOR, "RunResults")
        # A path without an ending is a folder with a file for each iteration.
        by_file = f"{loaded}.load({quoted(path)})"
        by_folder = f"{loaded}.concat({loaded}.load_streaming({quoted(path)}))"
        yield f"results.extend({by_file if Path(path).suffix else by_folder})"


def _evaluating_lines(plan: Plan, source: Source) -> Iterator[str]:
    """Lines that compare what the runners say."""
    for each in plan.postprocess:
        yield f"Comparator.postprocess(results, {source.expression(each)})"
    config = plan.config
    if len(plan.runners) + len(config.load_outputs) > 1:
        more = "".join(f", {n}=True" for n in ("fail_fast", "check_average") if getattr(config, n))
        compare = source.expression(list(plan.compare))
        yield f"accuracy = Comparator.compare_accuracy(results, compare_func={compare}{more})"
        yield "passed = passed and bool(accuracy)"
        if config.save_accuracy:
            yield f"accuracy.save({quoted(config.save_accuracy)})"
