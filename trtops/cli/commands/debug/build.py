"""Build an engine again and again, and evaluate each.

With --check a command evaluates, and files are sorted into good/ and bad/. With --experiment (or for ONNX Runtime) it is
a campaign: each build in a child process, evaluated against the model, all remembered, until the guilty tactic is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, loading, memory
from trtops.cli.commands.debug import repeat as debug_repeat
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say, say_result
from trtops.cli.script import Call, Maker, call

if TYPE_CHECKING:
    from trtops.ops.campaign.config import DebugBuildConfig
    from trtops.ops.campaign.debug_build import Progress

CAMPAIGN = Group(
    "campaign",
    (
        Flag(
            names=("--random-tactics", "--vary-tactics"),
            takes="switch",
            help="choose tactics at random, not by their time",
        ),
        Flag(names=("--parallel",), usual="1", convert=int, shown="N", help="builds under way at a time"),
        Flag(
            names=("--build-timeout",), usual="1800", convert=float, shown="SECONDS", help="how long one build may take"
        ),
        Flag(names=("--max-builds",), usual="200", convert=int, shown="N", help="builds and mixtures at most"),
        Flag(
            names=("--max-minutes",),
            usual="no limit",
            convert=float,
            shown="M",
            help="begin no build after so many minutes",
        ),
        Flag(
            names=("--clean-builds",),
            usual="24",
            convert=int,
            shown="N",
            help="good builds before nothing is searched for beside what was convicted",
        ),
        Flag(names=("--no-bisect",), takes="switch", help="wait for chance to decide; mix no good and bad build"),
        Flag(names=("--resume",), shown="RUN", help="a campaign to resume"),
        *groups.REMEMBERED.flags,
    ),
)
GROUPS = (
    groups.MODEL, groups.UNTIL, groups.SORTING, groups.ITERATING, groups.TRACKING, configs.BACKEND, CAMPAIGN, *groups.TRT_BUILD,
    Group("evaluating, in a campaign", (*groups.STATISTICS.flags, groups.IN_ITS_PRECISION)),
    groups.DATA, groups.ONNX_LOAD, groups.ONNX_OUTPUTS, groups.ONNX_SHAPE, groups.TENSORFLOW, groups.CHECK,
)  # fmt: skip
EXAMPLES = (
    "trtops debug build model.onnx --fp16 --save-tactics replay.json --artifacts-dir replays --artifacts replay.json \\\n"
    "    --until=10 --check trtops run trtops_debug.engine --trt --load-outputs golden.json",
    "trtops debug build model.onnx --fp16 --until decided --experiment resnet50",
    "trtops debug build model.onnx --onnxrt --allow-approximation --random-tactics --until 20 --experiment bert",
)
ARTIFACT = "trtops_debug.engine"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to build.

    Attributes:
        build: Makes and writes an engine, where a command evaluates.
        repeat: How that is repeated.
        model: The model, for a campaign.
        campaign: The campaign's config.
        experiment: Where it is remembered.
        store: Where the memory is.
        resume: The campaign to resume.
        allow_scripts: Whether what it names may be run.
    """

    build: Call | None = None
    repeat: debug_repeat.Plan | None = None
    model: str | None = None
    campaign: DebugBuildConfig | None = None
    experiment: str | None = None
    store: str | None = None
    resume: str | None = None
    allow_scripts: bool = False


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    if args.experiment is not None or args.resume or args.backend == "onnxruntime":
        return _campaign_plan(args)
    artifact = args.iter_artifact or ARTIFACT
    if args.until == "decided" or (args.until is None and not args.resume):
        raise UsageError(
            "say when to stop: --until good, --until bad or --until N; or --experiment NAME, until it is decided"
        )
    evaluated = [flag.dest for flag in (*groups.STATISTICS.flags, *CAMPAIGN.flags)]
    configs.refuse(
        args, (*evaluated, "store", "allow_approximation", "timing_seconds"), "is for a campaign; add --experiment NAME"
    )
    build = call(loading.COMMON, "SaveBytes", loading.engine_bytes(args), artifact)
    check = debug_repeat.check_of(args, artifact)
    if not args.artifacts and args.save_tactics:
        args.artifacts = [args.save_tactics]  # each build writes it anew
    return Plan(
        build=build,
        repeat=debug_repeat.Plan(
            check,
            debug_repeat.repeat_config(args.but(load_debug_replay=None, save_debug_replay=None), artifact),
            makes=True,
            exit_on_bad=bool(args.exit_on_bad),
        ),
    )


def _campaign_plan(args: Asked) -> Plan:
    if args.resume and args.model_file is None:
        return Plan(resume=args.resume, store=args.store, allow_scripts=bool(args.allow_scripts))
    if loading.wants_onnx_changes(args) or loading.model_type(args) != "onnx":
        raise UsageError(
            "a campaign builds an ONNX file as it is; change it first by `trtops surgeon` or `trtops convert`"
        )
    for name in ("artifacts", "iter_info", "save_tactics"):
        if getattr(args, name):
            raise UsageError(
                f"--{name.replace('_', '-')}: a campaign keeps everything in its runs; see them by `trtops runs`"
            )
    given = {
        "until": args.until,
        "parallel": args.parallel,
        "timeout_seconds": args.build_timeout,
        "max_iterations": args.max_builds,
        "max_minutes": args.max_minutes,
        "clean_builds": args.clean_builds,
        "bisect": False if args.no_bisect else None,
    }
    config = ops.DebugBuildConfig(
        build=configs.build_config(args, args.backend or "tensorrt"),
        check=configs.check_config(args, plots="never", latency_runs=10, warm_up=2),
        command=configs.command_check(args, ARTIFACT, "{engine}") if args.check else None,
        calibration_cache=args.calibration_cache,
        vary=ops.Vary(random_tactics=bool(args.random_tactics)),
        **{name: value for name, value in given.items() if value is not None},
    )
    return Plan(
        model=args.model_file,
        campaign=config,
        experiment=args.experiment,
        store=args.store,
        resume=args.resume,
        allow_scripts=bool(args.allow_scripts),
    )


def execute(plan: Plan) -> int:
    """Build, evaluate, and tell."""
    if plan.build is not None:
        return _repeat_builds(plan)
    tracker = memory.existing(plan.store) if plan.resume else memory.kept_or_forgotten(plan.experiment, plan.store)
    result = ops.debug_build(
        plan.model,
        plan.campaign,
        tracker=tracker,
        resume=plan.resume,
        experiment=plan.experiment,
        progress=_say_progress,
        allow_scripts=plan.allow_scripts,
    )
    say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1


def _say_progress(progress: Progress) -> None:
    if progress.last is not None:
        say(f"iteration {progress.last.number}: {progress.last.verdict} ({progress.done} of at most {progress.limit})")
    elif progress.mixtures:
        say(f"mixture {progress.mixtures} of a good and a bad build")


def _repeat_builds(plan: Plan) -> int:
    """Builds in a warm child process, so that a crash is a verdict."""
    from trtops.backend.trt import library
    from trtops.backend.worker import Worker

    assert plan.repeat is not None
    library.load()
    worker = Worker()
    try:
        return debug_repeat.carry_out(plan.repeat, lambda number: worker.run(build_once, plan.build))
    finally:
        worker.close()


def build_once(build: Call) -> None:
    """Make and write one engine; runs in the child."""
    Maker()(build)()
