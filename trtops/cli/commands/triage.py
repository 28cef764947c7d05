"""Find out why an engine is bad: one question after the other, down to the smallest case that shows it.

Is the data real, is the model sound, is the engine bad every time, is it the precision or the builder, where, which tactic,
which nodes to keep. Each answer is kept with its evidence and its cost, so that what was stopped can be resumed. Exits with
1 if a fault was found, and with 3 if it was stopped before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_ending, say_json, say_page

if TYPE_CHECKING:
    from trtops.ops.triaging.result import Step, TriageConfig

_OF_BUILDS = ("calibration_cache", "load_tactics")

GROUPS = (
    Group("model", (Flag(names=("model_file",), takes="optional", help="the ONNX model; of a triage to resume its own"),)),
    Group(
        "asking",
        (
            Flag(names=("--minutes",), usual="no limit", convert=float, shown="N", help="begin no question after so many minutes"),
            Flag(names=("--resume",), shown="RUN", help="go on with a triage that was stopped or killed"),
            Flag(names=("--golden-model",), shown="FILE", help="a model that is right; tensors are matched by name"),
            Flag(names=("--golden", "--load-outputs"), shown="FILE", help="saved outputs that are right"),
            Flag(names=("--rebuilds",), usual="2", convert=int, shown="N", help="how often a bad engine is built again"),
            Flag(names=("--max-builds",), usual="40", convert=int, shown="N", help="builds that looking for a tactic may take"),
            Flag(names=("-o", "--output"), to="folder", shown="FOLDER", help="where the smallest case and its bundle go"),
        ),
    ),
    groups.JSON, groups.TRACKING, configs.BACKEND,
    groups.STATISTICS,
    groups.SOURCE, groups.SPEC,
    Group(
        "what the engine is built with",
        tuple(flag for group in groups.TRT_BUILD for flag in group.flags if flag.dest in _OF_BUILDS),
    ),
)  # fmt: skip
EXAMPLES = (
    "trtops triage model.onnx --fp16 --load-inputs inputs.json",
    "trtops triage model.onnx --trt --fp16 --minutes 30 --experiment resnet50",
    "trtops triage --resume 8d6e3f --experiment resnet50",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to ask.

    Attributes:
        model: The model.
        config: The op's config.
        resume: A triage to go on with.
        experiment: Where to remember it.
        store: Where the memory is.
        json: Whether to print JSON.
    """

    model: str | None
    config: TriageConfig
    resume: str | None
    experiment: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    if args.model_file is None and args.resume is None:
        raise UsageError("which model? Give an ONNX file, or --resume RUN")
    options = configs.given(rebuilds=args.rebuilds, campaign_builds=args.max_builds)
    config = ops.TriageConfig(
        build=configs.build_config(
            args, args.backend or ("tensorrt" if args.peek("strongly_typed") else "onnxruntime")
        ),
        check=configs.check_config(args, golden=args.golden, plots="never", latency_runs=0),
        golden_model=args.golden_model,
        calibration_cache=args.calibration_cache,
        replay=args.load_tactics,
        minutes=args.minutes,
        output=args.folder,
        **options,
    )
    remembered = args.experiment is not None or args.resume is not None
    return Plan(
        model=args.model_file,
        config=config,
        resume=args.resume,
        experiment=args.experiment,
        store=args.store if remembered else None,
        json=bool(args.json),
    )


def execute(plan: Plan) -> int:
    """Ask, and print."""
    tracker = memory.kept(plan.experiment, plan.store)
    if plan.resume is not None and tracker is None:
        tracker = memory.opened(plan.store)
    result = ops.triage(
        plan.model,
        plan.config,
        tracker=tracker,
        resume=plan.resume,
        experiment=plan.experiment,
        progress=None if plan.json else _say_step,
    )
    if plan.json:
        say_json(result.to_dict())
    else:
        say("")
        say_page("\n".join(result.summary()))
        say_ending(result, plan.store)
    return {"good": 0, "bad": 1, "error": 3}[result.verdict]


def _say_step(step: Step) -> None:
    if not step.answer:
        say(f"{step.asks} {step.why}")
        return
    say(f"  {step.answer} ({step.builds} builds, {step.seconds:.1f} s)")
    for line in step.evidence:
        say(f"  - {line}")
