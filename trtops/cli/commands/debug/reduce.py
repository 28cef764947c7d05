"""The command ``trtops debug reduce``."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import ops
from trtops.cli import configs, groups, loading
from trtops.cli.commands import debug
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command
from trtops.cli.logs import say_progress
from trtops.cli.script import product
from trtops.errors import ComparisonError

if TYPE_CHECKING:
    from trtops.backend.onnx.submodel import SubModel
    from trtops.ops.search.delta import Step
    from trtops.ops.search.submodel import CheckOutcome

_OBSERVED = "shapes are those observed when the whole model ran"

ARTIFACT = "trtops_debug.onnx"


@command(
    groups.ONNX_MODEL,
    Group(
        "reducing",
        flag("-o --output FILE", "where to save the smallest failing model (default: trtops_reduced.onnx)"),
        flag("--model-input-shapes --model-inputs NAME:[DIMS]+", "shapes of the model's inputs", to="input_shapes"),
    ),
    configs.config_flags(
        "reducing",
        "ReduceConfig",
        {"min_good": "--min-good --minimal-good", "inputs": "--inputs-are"},
        skip="data output save_as load_replay save_replay",
    ),
    groups.CHECK,
    groups.SAVE_AS,
    groups.ONNX_LOAD,
    groups.SORTING,
    groups.ITERATING,
    groups.REPLAY,
    groups.TRACKING,
    configs.BACKEND,
    Group("evaluation without --check", groups.STATISTICS),
    groups.DATA,
    groups.SPEC.without("--trt-min-shapes", "--trt-opt-shapes", "--trt-max-shapes"),
    Group(
        "shapes",
        flag("--no-shape-inference", "infer no shapes", idle=_OBSERVED),
        flag("--force-fallback-shape-inference", "find shapes by running the model", idle="this is always done"),
        replace(groups.NO_SYMBOLIC_SHAPES, idle=_OBSERVED),
    ),
    examples=("trtops debug reduce model.onnx -o small.onnx --check trtops run trtops_debug.onnx --onnxrt --trt",),
)
def reduce(args: Options) -> Job:
    """Find the smallest part of an ONNX model that still fails.

    It fails if a check command fails. Without --check a person at the terminal is asked about each part, or answers are
    read from a pipe; with --trt or --onnxrt, or with neither, a part fails if an engine's outputs differ from the
    model's own. Parts get the values that flow there in the whole model. Exits with 0 once the part is found; with 1 if
    the model fails and --exit-on-bad or --experiment asks for the verdict.
    """
    feeds = configs.random_data(args)
    config = configs.make(
        args,
        "ReduceConfig",
        configs.data_values(args, random=feeds is not None),
        output=args.output or "trtops_reduced.onnx",
        save_as=loading.save_config(args),
        load_replay=args.load_debug_replay,
        save_replay=args.save_debug_replay,
    )
    check: Any = None
    if args.check:
        check = replace(configs.command_check(args, ARTIFACT), tell_passing=bool(args.show_output))
    elif args.backend is None and (sys.stdin.isatty() or debug.has_piped_answers()):
        check = _ask_about
    build: Any = None
    tolerances = None
    if args.check:
        args.ignore(groups.STATISTICS, groups.SPEC, configs.BACKEND)
    else:
        args.ignore("show_output", *(() if args.no_remove_intermediate else ("iter_artifact",)))
        build = replace(configs.build_config(args, args.backend or "tensorrt"), profiles=())
        tolerances = configs.tolerances(args)
    artifacts, folder, show = tuple(args.artifacts or ()), args.art_dir, not args.hide_fail_output
    info = None if args.iter_info is None else Path(args.iter_info)
    keep = (args.iter_artifact or ARTIFACT) if args.no_remove_intermediate else None
    model = loading.changed_model(args.but(shape_inference=None, force_fallback_shape_inference=None))
    search = debug.Search.of(args)

    def write_iteration(number: int) -> None:
        """Write the number of the next iteration, for the check to read."""
        if info is not None:
            info.write_text(json.dumps({"iteration": number}), encoding="utf-8")

    def finish_check(step: Step) -> None:
        detail = f": {step.detail.rstrip()}" if step.detail and show else ""
        say_progress(f"check {step.number}, {step.size} nodes, {step.verdict}{detail}")
        ops.sort_artifacts(artifacts, folder, good=step.verdict == "pass", label=f"N{step.number}")
        write_iteration(step.number)

    def run() -> int:
        checking = ops.engine_check(build, tolerances) if check is None else check
        write_iteration(0)
        try:
            searched = config if feeds is None else replace(config, data=product(feeds))
            result = search.run(ops.reduce, product(model), checking, searched, progress=finish_check)
        finally:
            if info is not None:
                info.unlink(missing_ok=True)
        if result.whole == "error":
            raise ComparisonError(f"{result.because[0]}. Make the check pass or fail on it first")
        if keep is not None and result.culprit is not None:
            shutil.copy(str(result.culprit.path), keep)
        return search.end(result)

    return run


def _ask_about(part: SubModel) -> CheckOutcome:
    """Write a part to the checked file, and ask the person at the terminal about it."""
    # These import numpy and onnx, which help does not need.
    from trtops.backend.onnx.save import save_model
    from trtops.ops.search.submodel import CheckOutcome

    save_model(part.proto, ARTIFACT)
    try:
        passed = debug.ask(f"Did '{ARTIFACT}'")
    finally:
        Path(ARTIFACT).unlink(missing_ok=True)
    return CheckOutcome(verdict="pass" if passed else "fail")
