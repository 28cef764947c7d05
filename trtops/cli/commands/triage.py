"""The command ``trtops triage``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.logs import say, say_ending, say_page

if TYPE_CHECKING:
    from trtops.ops.triaging.result import Step, TriageResult


@command(
    Group("model", flag("model_file", "the ONNX model")),
    Group(
        "triage",
        flag("--golden --load-outputs FILE", "saved outputs to use as the reference"),
        flag("-o --output FOLDER", "where to write the smallest case and its bundle", to="folder"),
    ),
    configs.config_flags("triage", "TriageConfig", {"campaign_builds": "--max-builds"}, skip="build check replay"),
    groups.JSON,
    groups.TRACKING,
    configs.BACKEND,
    groups.STATISTICS,
    groups.SOURCE,
    groups.SPEC,
    Group("building", groups.PRECISIONS.only("calibration_cache"), groups.TRT_TACTICS.only("load_tactics")),
    examples=(
        "trtops triage model.onnx --fp16 --load-inputs inputs.json",
        "trtops triage model.onnx --trt --fp16 --minutes 30 --experiment resnet50",
    ),
)
def triage(args: Options) -> Job:
    """Find out why an engine is bad: one question after the other, down to the smallest case that shows the fault.

    Is the data real, is the model sound, is the engine bad every time, is it the precision or the builder, where, which
    tactic, which nodes to keep. Each answer is stored with its evidence and its cost. Exits with 1 if a fault was
    found, and with 3 if it was stopped before.
    """
    backend = args.backend or ("tensorrt" if args.peek("strongly_typed") else "onnxruntime")
    check = {"check.golden": args.golden, "check.plots": "never", "check.latency_runs": 0}
    config = configs.make(
        args,
        "TriageConfig",
        configs.check_values(args) | check,
        build=configs.build_config(args, backend),
        calibration_cache=args.calibration_cache,
        replay=args.load_tactics,
        output=args.folder,
    )
    return op_job(
        args,
        "triage",
        args.model_file,
        config,
        store="optional",
        experiment=args.experiment,
        code=lambda result: {"good": 0, "bad": 1, "error": 3}[result.verdict],
        show=_show,
        progress=None if args.peek("json") else _say_step,
    )


def _say_step(step: Step) -> None:
    if not step.answer:
        say(step.asks)
        return
    say(f"  {step.answer} ({step.builds} builds, {step.seconds:.1f} s)")
    for line in step.evidence:
        say(f"  - {line}")


def _show(result: TriageResult, store: str | None) -> None:
    say("")
    say_page("\n".join(result.summary()))
    say_ending(result, store)
