"""The command ``trtops run``."""

from __future__ import annotations

import functools
import logging
import os
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import comparator, ops
from trtops.backend import common, onnx, onnxrt, pluginref, trt
from trtops.backend.loader import BaseLoader
from trtops.cli import configs, groups, loading, values
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, store_of, tracker
from trtops.cli.logs import say, say_result
from trtops.cli.script import Call, Source, call, given, product, quoted
from trtops.extras import require
from trtops.patterns import expand

if TYPE_CHECKING:
    from trtops.ops.comparing.run import RunConfig

log = logging.getLogger(__name__)

RUNNERS = Group(
    "runners, in the order given",
    *(
        flag(f"--{value}", text, takes="runner", to="runners", value=value, shown=shown)
        for value, text, shown in (
            ("onnxrt", "ONNX Runtime", None),
            ("trt", "TensorRT", None),
            ("trt-engine", "TensorRT with an existing engine", "FILE"),
            ("onnx", "ONNX's reference implementation", None),
            ("pluginref", "reference implementations of plugins, on the CPU", None),
            ("torch", "the PyTorch module itself", None),
        )
    ),
)

_KINDS = {flag.value for flag in RUNNERS.flags}

RUNNING = Group(
    "running",
    flag("--warm-up --warm-up-runs N", "inferences before the timed ones", usual="0"),
    flag("--use-subprocess", "run each runner in its own child process"),
    flag("--sequential-runners", "one runner at a time", idle="runners never share memory"),
    flag("--save-inputs --save-input-data PATH", "where to save the inputs"),
    flag(
        "--save-input-blob FOLDER?",
        "where to save the inputs as raw bytes (default: this folder)",
        value=".",
        single=lambda word: "." if os.path.isfile(word) else None,
    ),
    flag("--save-outputs --save-results PATH", "where to save the outputs"),
    flag("--save-layer-outputs PATH", "as --mark-all --save-outputs PATH"),
    flag("--save-engine FILE", "where to save the TensorRT engine"),
    flag("--optimization-profile N", "profile to run with", usual="0"),
    flag(
        "--allocation-strategy {static,profile,runtime}",
        "device memory: for all profiles (default), one, or the actual shapes",
    ),
    flag("--weight-streaming-budget SIZE|PERCENT%", "device memory for streamable weights, or the streamed part"),
)

_OF_ENGINES = ("optimization_profile", "allocation_strategy", "weight_streaming_budget")

EVALUATION = Group(
    "evaluation",
    flag("--validate", "treat NaN and infinities in outputs as faults"),
    flag("--load-outputs --load-results PATH+", "saved outputs to compare with; alone, with one another"),
    flag("--postprocess --postprocess-func [OUTPUT:]top-K+", "compare the positions of the largest elements instead"),
    flag(
        "--postprocess-func-script FILE[:postprocess_outputs]", "a script that changes outputs before they are compared"
    ),
    flag(
        "--gen-script --gen FILE",
        "write a Python script that does the same, and run nothing; - prints it",
        file="writes",
    ),
)


@command(
    groups.MODEL,
    RUNNERS,
    RUNNING,
    EVALUATION,
    groups.THRESHOLDS,
    groups.COMPARING,
    groups.DATA,
    *groups.ONNX,
    Group(
        groups.SAVE_AS.title,
        flag("--save-onnx FILE", "where to write the ONNX model as it is run"),
        groups.SAVE_AS.each(needs="save_onnx"),
    ),
    groups.PROVIDERS,
    *groups.TRT_BUILD,
    groups.TRT_LOAD,
    groups.TENSORFLOW,
    groups.TRACKING,
    examples=(
        "trtops run model.onnx --onnxrt --trt --fp16 --rtol 1e-3 --atol 1e-3",
        "trtops run model.onnx --onnxrt --save-inputs inputs.json --save-outputs golden.json",
    ),
)
def run(args: Options) -> Job:
    """Run a model on several back ends with the same inputs, and compare their outputs.

    Each back end is compared with the next, and with saved outputs.
    """
    if args.save_layer_outputs:
        args.onnx_outputs = args.onnx_outputs or ("mark", "all")
        args.save_outputs = args.save_outputs or args.save_layer_outputs
    if args.gen_script:
        if args.experiment:
            raise UsageError("--gen-script writes what is run, not what is recorded; leave out --experiment")
        # The script may be moved, or run in another folder.
        args.model_file = args.model_file and os.path.abspath(args.model_file)
    kinds = {kind for kind, _ in args.runners or ()}
    configs.export_torch(args, scripts=bool(kinds & {"onnxrt", "onnx", "torch"}))
    work = _work(args)
    if not (work.runners or work.config.load_outputs or work.onnx_loader or args.gen_script):
        raise UsageError("No runners have been selected. Add some: --onnxrt --trt, or outputs by --load-outputs")
    line = shlex.join(args.words)
    return _writing_job(work, line, args.gen_script) if args.gen_script else _running_job(args, work, line)


@dataclass(frozen=True, kw_only=True)
class Work:
    """The loaders of a command line; they are called when the work starts."""

    config: RunConfig
    runners: list[Call]
    data_loader: Call | None
    compare: list[Any]
    postprocess: list[Any]
    onnx_loader: Any  # of the model to save, where nothing is run


def _work(args: Options) -> Work:
    runners: list[Call] = []
    for kind, word in args.runners or ():
        runners += _runners(args, kind, word)
    compared = len(runners) > 1 or bool(args.load_outputs)
    if not compared:
        args.ignore(groups.THRESHOLDS, groups.COMPARING.without(*(("--fail-fast",) if args.validate else ())))
    _ignore_options_of_others(args)
    config = ops.RunConfig(**args.fields_of(ops.RunConfig))
    if compared:
        config = replace(config, save_accuracy=args.save_accuracy_results)
    else:
        config = replace(config, check_average=False, fail_fast=config.fail_fast and config.validate)
    postprocess: list[Any] = []
    if args.postprocess:
        postprocess.append(comparator.TopKPostprocessFunc(values.per_name(args.postprocess)))  # type: ignore[arg-type]
    if args.postprocess_func_script:
        postprocess.append(common.InvokeFromScript(*args.postprocess_func_script))
    compare = loading.compare_functions(args) if compared else []
    if config.check_average:
        from trtops.comparator.comparator import check_averageable

        check_averageable(compare, config.fail_fast)  # before anything is run
    return Work(
        config=config,
        runners=runners,
        data_loader=loading.data_loader(args),
        compare=compare,
        postprocess=postprocess,
        onnx_loader=loading.onnx_model(args) if args.save_onnx and not runners else None,
    )


def _ignore_options_of_others(args: Options) -> None:
    """Declare that options of runners without use on this line have no effect."""
    kinds = {kind for kind, _ in args.runners or ()}
    if kinds - _KINDS:  # an extension may read any option
        return
    if "trt" not in kinds:
        args.ignore(groups.ENGINE_BUILD, "save_engine")
    if not kinds & {"trt", "trt-engine"}:
        args.ignore(groups.TRT_LOAD, groups.TRT_PARSE, RUNNING.only(*_OF_ENGINES))
        if args.load_inputs or args.data_loader_script:
            args.ignore(groups.TRT_SHAPES)
    if "onnxrt" not in kinds:
        args.ignore(groups.PROVIDERS)


def _running_job(args: Options, work: Work, line: str) -> Job:
    model, experiment = args.model_file or "", args.experiment
    shaped = list(loading.input_shapes(args) or ()) if work.runners and loading.model_type(args) == "onnx" else []
    store_address = store_of(args)

    def run() -> int:
        if work.onnx_loader is not None:
            work.onnx_loader()
        if not work.runners and not work.config.load_outputs:
            return 0
        _check_libraries(work.runners)  # before anything is run
        if shaped:
            from trtops.backend.onnx.model import read_proto

            names = [value.name for value in read_proto(model).graph.input]
            expand(shaped, names, of="The model", kind="input")
        result = ops.run_models(
            [runner() for runner in _sharing_model(work.runners)],
            work.config,
            data_loader=product(work.data_loader),
            compare=work.compare or None,
            postprocess=work.postprocess,
            source=model,
            tracker=tracker("optional", store_address, experiment),
            experiment=experiment,
            params={"command": line},
        )
        say_result(result, store_address)
        return 0 if result.verdict == "good" else 1

    return run


def _check_libraries(runners: list[Call]) -> None:
    # By name: naming the classes themselves would import each back end.
    names = {getattr(runner.function, "__name__", "") for runner in runners}
    if "OnnxrtRunner" in names:
        require("onnxruntime")
    if "TrtRunner" in names:
        from trtops.backend.trt import library

        library.load()


def _sharing_model(runners: list[Call]) -> list[Call]:
    """Let the sessions of one changed model serialize it once."""
    shared: list[Call] = []
    serialize: Any = None
    for runner in runners:
        session = runner.args[0]
        data = getattr(session, "model_bytes", None)
        if isinstance(data, BaseLoader) and isinstance(data, onnx.BytesFromOnnx):  # a path needs no import of onnx
            serialize = serialize or functools.cache(data)
            runner = replace(runner, args=(replace(session, model_bytes=serialize),))
        shared.append(runner)
    return shared


def _runners(args: Options, kind: str, word: str | None) -> list[Call]:
    """Return the runner of an option, or the runners of an extension's option."""
    if kind in _KINDS:
        return [_runner(args, kind, word)]
    from trtops import tools  # which imports this package

    return tools.runners(args, kind)


def _runner(args: Options, kind: str, word: str | None) -> Call:
    if kind in ("trt", "trt-engine"):
        unit, budget = args.weight_streaming_budget or (None, None)
        return call(
            trt.TrtRunner,
            loading.engine(args, word),
            optimization_profile=args.optimization_profile,
            allocation_strategy=args.allocation_strategy,
            weight_streaming_budget=budget if unit == "bytes" else None,
            weight_streaming_percent=budget if unit == "percent" else None,
        )
    if kind == "torch":
        if getattr(args, "export", None) is None:
            raise UsageError(f"{args.model_file} is no PyTorch model, as --torch needs: script.py:function or .pt2")
        if args.gen_script:
            raise UsageError("--gen-script cannot write the module that --torch runs; leave out one of them")
        from trtops.backend.torch.runner import TorchRunner  # with Protobuf, which help has no use for

        return call(TorchRunner, args.export)
    kind_of_model = loading.model_type(args)
    if kind_of_model in ("engine", "trt-network-script"):
        raise UsageError(f"{args.model_file} is not an ONNX model, so --{kind} cannot run it; use --trt")
    if kind in ("onnx", "pluginref"):
        name = None if kind == "pluginref" else "onnx-reference"
        graph = onnx.GsFromOnnx(loading.onnx_model(args))  # Polygraphy's runner, too, runs a generated script's graph
        return call(pluginref.PluginRefRunner, graph, name=name)
    source: Any = args.model_file
    if kind_of_model != "onnx" or loading.wants_onnx_changes(args):
        source = onnx.BytesFromOnnx(loading.onnx_model(args))
    return call(onnxrt.OnnxrtRunner, onnxrt.SessionFromOnnx(source, **loading.session_options(args)))


# --- --gen-script ---------------------------------------------------------------------------------------------------


def _writing_job(work: Work, line: str, path: str) -> Job:
    text = script(work, line)

    def write() -> int:
        if path == "-":
            say(text.rstrip())
        else:
            common.save_bytes(text.encode(), path)
        return 0

    return write


def script(work: Work, command: str) -> str:
    """Return a Python script equivalent to the command line."""
    source = Source()
    logger = source.use("trtops.logger", "G_LOGGER")
    lines = [f"{logger}.module_severity = {logger}.INFO"]
    if work.onnx_loader is not None:
        lines.append(f"{source.expression(work.onnx_loader)}()")
    if work.runners or work.config.load_outputs:
        source.use("sys")
        lines += [*_script_lines(work, source), "sys.exit(0 if passed else 1)"]
    source.lines += ['\n\nif __name__ == "__main__":', *(f"    {line}" for line in lines)]
    shown = textwrap.fill(command, 110, break_long_words=False, break_on_hyphens=False, subsequent_indent="    ")
    return source.text(f"Does what this does:\n\n{shown}\n".replace("\\", "\\\\").replace('"""', "'''"))


def _script_lines(work: Work, source: Source) -> Iterator[str]:
    """Yield the lines for running, reading saved outputs, and comparing."""
    config = work.config
    options = given(
        data_loader=work.data_loader,
        warm_up=config.warm_up or None,
        use_subprocess=config.use_subprocess,
        save_inputs_path=config.save_inputs,
        save_input_blob_path=config.save_input_blob,
        save_outputs_path=config.save_outputs,
    )
    source.lines.append(f"runners = {source.expression(work.runners)}")
    arguments = "".join(f", {name}={source.expression(value)}" for name, value in options.items())
    yield f"results = {source.use('trtops.comparator', 'Comparator')}.run(runners{arguments})"
    if config.validate:
        yield f"passed = Comparator.validate(results, check_inf=True, fail_fast={config.fail_fast})"
    else:
        yield "passed = True"
    for path in config.load_outputs:
        results = source.use("trtops.comparator", "RunResults")
        # A path without a suffix is a folder with a file for each iteration.
        one_file = f"{results}.load({quoted(path)})"
        folder = f"{results}.concat({results}.load_streaming({quoted(path)}))"
        yield f"results.extend({one_file if Path(path).suffix else folder})"
    for function in work.postprocess:
        yield f"Comparator.postprocess(results, {source.expression(function)})"
    if len(work.runners) + len(config.load_outputs) > 1:
        flags = "".join(f", {n}=True" for n in ("fail_fast", "check_average") if getattr(config, n))
        compare = source.expression(work.compare)
        yield f"accuracy = Comparator.compare_accuracy(results, compare_func={compare}{flags})"
        yield "passed = passed and bool(accuracy)"
        if config.save_accuracy:
            yield f"accuracy.save({quoted(config.save_accuracy)})"
