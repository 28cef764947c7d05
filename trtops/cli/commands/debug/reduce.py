"""Find the smallest part of an ONNX model that still fails.

It fails if a check command fails. Without --check a person at the terminal is asked about each part; with --trt or --onnxrt,
or off a terminal, a part fails if an engine's outputs differ from the model's own. What flows into each part is what really flows there. Exits with 0 once the part is found; with 1 if the model fails and
--exit-on-bad or --experiment asks for the verdict.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, loading, memory, surgery, values
from trtops.cli.commands.debug import repeat as debug_repeat
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.iterations import Iterations
from trtops.cli.logs import say, say_ending
from trtops.cli.script import Call, Maker
from trtops.errors import ComparisonError
from trtops.spec import BuildConfig

if TYPE_CHECKING:
    from trtops.backend.onnx.submodel import SubModel
    from trtops.comparator.report import Tolerances
    from trtops.ops.evaluation.command import CommandCheck
    from trtops.ops.evaluation.submodel import CheckOutcome
    from trtops.ops.search.reduce_journal import Step
    from trtops.ops.search.reduce_search import ReduceConfig

_SEEN = "shapes are those seen when the whole model ran"

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "reducing",
        (
            Flag(names=("-o", "--output"), to="output", shown="FILE", help="where to save the smallest failing model (default: trtops_reduced.onnx)"),
            Flag(names=("--min-good", "--minimal-good"), shown="FILE", help="where to save the passing model closest to it"),
            Flag(names=("--no-reduce-inputs",), takes="switch", help="cut nothing off at the beginning"),
            Flag(names=("--no-reduce-outputs",), takes="switch", help="cut nothing off at the end"),
            Flag(names=("--mode",), usual="bisect", choices=("bisect", "linear"), help="how to search"),
            Flag(names=("--find-all",), takes="switch", help="find every culprit, not the first alone"),
            Flag(names=("--journal",), shown="FILE", help="where answers are kept, so that a killed search can resume (default: beside the output, begun anew and kept until the end)"),
            Flag(names=("--inputs-are",), usual="real", choices=("real", "random", "declared"), help="what flows into parts: real values, random ones, or none (declared types only)"),
            Flag(names=("--branches",), choices=("frozen", "inputs"), help="what other branches bring into a part: frozen at the data's values, or further inputs (default: frozen where data is given)"),
            Flag(names=("--max-checks",), usual="no limit", convert=int, shown="N", help="stop after so many checks"),
            Flag(names=("--width",), usual="1", convert=int, shown="N", help="check so many parts at a time"),
            Flag(
                names=("--model-input-shapes", "--model-inputs"), to="input_shapes", takes="many", convert=values.shape, shown="NAME:[DIMS]",
                help="shapes of the model's inputs",
            ),
        ),
    ),
    groups.CHECK,
    Group(groups.ONNX_SAVE.title, groups.ONNX_SAVE.flags[1:]),
    groups.ONNX_LOAD,
    groups.SORTING,
    Group(groups.ITERATING.title, tuple(f for f in groups.ITERATING.flags)),
    Group(groups.REPLAY.title, (groups.REPLAY.flags[0], Flag(names=("--save-debug-replay",), shown="FILE", default="trtops_debug_replay.json", help="where to keep answers, for Polygraphy as well"))),
    groups.TRACKING, configs.BACKEND,
    Group("evaluating without --check", groups.STATISTICS.flags),
    groups.DATA, Group(groups.SPEC.title, tuple(f for f in groups.SPEC.flags if not f.dest.endswith("_shapes"))),
    Group("shapes", (
        Flag(names=("--no-shape-inference",), takes="switch", help="infer no shapes", idle=_SEEN),
        Flag(names=("--force-fallback-shape-inference",), takes="switch", help="find shapes by running the model", idle="they are found so in any case"),
        Flag(names=("--no-onnxruntime-shape-inference",), takes="switch", help="infer shapes without ONNX Runtime's symbolic inference", idle=_SEEN),
    )),
)  # fmt: skip
EXAMPLES = (
    "trtops debug reduce model.onnx -o small.onnx --check trtops run trtops_debug.onnx --onnxrt --trt",
    "trtops debug reduce model.onnx -o small.onnx --trt --fp16 --atol 1e-2 --rtol 1e-2",
    "trtops debug reduce model.onnx --fail-regex 'Unsupported op' --check trtops convert {model} -o /dev/null.engine",
)
ARTIFACT = "trtops_debug.onnx"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to reduce.

    Attributes:
        model: The model, or what makes it.
        name: Its name.
        check: The command that evaluates; None compares engines.
        build: How engines are built then.
        tolerances: When they are good enough.
        config: The op's config.
        feeds: Makes inputs, in place of the config's source.
        artifacts: Files to sort after each check.
        folder: Where to.
        info: Where the iteration's number is written for the command.
        show: Whether details are shown: of failing checks, and of all with --show-output.
        keep: Where to leave the file that checks read.
        experiment: Where to remember it.
        store: Where the memory is.
        exit_on_bad: Whether a bad verdict is exit code 1.
        asks: Whether a person evaluates.
    """

    model: str | Call
    check: CommandCheck | None
    build: BuildConfig | None
    tolerances: Tolerances | None
    config: ReduceConfig
    feeds: Call | None = None
    name: str = ""
    artifacts: tuple[str, ...] = ()
    folder: str = ""
    info: str | None = None
    show: bool = True
    keep: str | None = None
    experiment: str | None = None
    store: str | None = None
    exit_on_bad: bool = False
    asks: bool = False


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    if args.no_reduce_inputs and args.no_reduce_outputs:
        raise UsageError("--no-reduce-inputs and --no-reduce-outputs together leave nothing to do")
    made_up = configs.made_up_data(args)
    config = ops.ReduceConfig(
        find="all" if args.find_all else "first",
        reduce_inputs=not args.no_reduce_inputs,
        reduce_outputs=not args.no_reduce_outputs,
        input_shapes={name: loading.fixed(shape) for name, shape in args.input_shapes or ()},
        output=args.output or "trtops_reduced.onnx",
        save_as=surgery.save_config(args),
        min_good=args.min_good,
        journal=args.journal,
        load_replay=args.load_debug_replay,
        save_replay=args.save_debug_replay,
        **configs.data_options(args, made_up=made_up is not None),
        **configs.given(
            mode=args.mode, inputs=args.inputs_are, branches=args.branches, max_checks=args.max_checks, width=args.width
        ),
    )
    check = configs.command_check(args, ARTIFACT) if args.check else None
    return Plan(
        model=surgery.model(args.but(shape_inference=None, force_fallback_shape_inference=None)),
        name=args.model_file,
        feeds=made_up,
        check=replace(check, tell_passing=bool(args.show_output)) if check else None,
        build=None if check else replace(configs.build_config(args, args.backend or "tensorrt"), profiles=()),
        tolerances=None if check else configs.tolerances(args),
        config=config,
        artifacts=tuple(args.artifacts or ()),
        folder=args.art_dir,
        info=args.iter_info,
        show=not args.hide_fail_output,
        keep=(args.iter_artifact or ARTIFACT) if args.no_remove_intermediate else None,
        experiment=args.experiment,
        store=args.store if args.experiment else None,
        exit_on_bad=bool(args.exit_on_bad or args.experiment),
        asks=check is None and args.backend is None and sys.stdin.isatty(),
    )


def execute(plan: Plan) -> int:
    """Reduce, and print."""
    make, iterations = Maker(), Iterations()
    check = plan.check or (_ask_about if plan.asks else ops.engine_check(plan.build or BuildConfig(), plan.tolerances))
    _write_iteration(plan, 0)
    try:
        result = ops.reduce(
            make(plan.model),
            check,
            plan.config,
            feeds=make(plan.feeds),
            tracker=memory.kept(plan.experiment, plan.store),
            experiment=plan.experiment,
            file=plan.name,
            progress=lambda step: _finish_check(plan, step, iterations),
        )
    finally:
        if plan.info is not None:
            Path(plan.info).unlink(missing_ok=True)
    if result.whole == "error":
        raise ComparisonError(f"{result.text()}. Make the check pass or fail on it first")
    iterations.tell_all()
    say(result.text())
    if plan.experiment is not None:
        say_ending(result, plan.store)
    if plan.keep is not None and result.culprits:
        shutil.copy(str(result.culprits[0].path), plan.keep)
    return 1 if plan.exit_on_bad and result.verdict != "good" else 0


def _ask_about(part: SubModel) -> CheckOutcome:
    """Write a part to the file that checks read, and let the person at the terminal evaluate it."""
    from trtops.ops.evaluation.submodel import CheckOutcome  # brings numpy and onnx, which help does not need

    part.save(Path(ARTIFACT))
    try:
        passed = debug_repeat.ask(f"Did '{ARTIFACT}'")
    finally:
        Path(ARTIFACT).unlink(missing_ok=True)
    return CheckOutcome(verdict="pass" if passed else "fail")


def _finish_check(plan: Plan, step: Step, iterations: Iterations) -> None:
    """Say how a check went, and sort what it left."""
    detail = f": {step.detail.rstrip()}" if step.detail and plan.show else ""
    say(f"check {step.number}, {len(step.nodes)} nodes, {step.verdict}{detail}")
    iterations.ended(step.verdict == "pass")
    ops.sort_artifacts(plan.artifacts, plan.folder, good=step.verdict == "pass", label=f"N{step.number}")
    _write_iteration(plan, step.number)


def _write_iteration(plan: Plan, number: int) -> None:
    """Tell the next check which it is."""
    if plan.info is not None:
        Path(plan.info).write_text(json.dumps({"iteration": number}), encoding="utf-8")
