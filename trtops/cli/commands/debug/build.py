"""The command ``trtops debug build``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from trtops import ops
from trtops.backend.common import SaveBytes
from trtops.cli import configs, groups, loading
from trtops.cli.commands.debug import repeat
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.logs import say
from trtops.cli.script import Unresolved

if TYPE_CHECKING:
    from trtops.ops.campaign.debug_build import Progress

CAMPAIGN = Group(
    "campaign",
    flag("--random-tactics --vary-tactics", "choose tactics at random, not by their time"),
    flag("--resume RUN", "a campaign to resume"),
    groups.RECORDED_CODE,
)
OPTIONS = configs.config_flags(
    "campaign",
    "DebugBuildConfig",
    {"max_iterations": "--max-builds"},
    skip="build command until vary optimization_levels tactic_sources precisions",
)
ARTIFACT = "trtops_debug.engine"


@command(
    groups.MODEL,
    groups.UNTIL,
    groups.SORTING,
    groups.ITERATING,
    groups.TRACKING,
    configs.BACKEND,
    CAMPAIGN,
    OPTIONS,
    *groups.TRT_BUILD,
    Group("evaluation, in a campaign", groups.STATISTICS),
    groups.DATA,
    *groups.ONNX,
    groups.TENSORFLOW,
    groups.CHECK,
    examples=(
        "trtops debug build model.onnx --fp16 --save-tactics replay.json --artifacts-dir replays --artifacts "
        "replay.json \\\n"
        "    --until=10 --check trtops run trtops_debug.engine --trt --load-outputs golden.json",
        "trtops debug build model.onnx --fp16 --until decided --experiment resnet50",
        "trtops debug build model.onnx --onnxrt --allow-approximation --random-tactics --until 20 --experiment bert",
    ),
)
def build(args: Options) -> Job:
    """Build an engine repeatedly, and check each.

    With --check a command checks, and files are sorted into good/ and bad/. With --experiment (or for ONNX Runtime) it
    is a campaign: each build runs in a child process and is compared with the model, all are recorded, until the
    culprit is known.
    """
    if args.experiment is not None or args.resume or args.backend == "onnxruntime":
        return _campaign(args)
    artifact = args.iter_artifact or ARTIFACT
    if args.until == "decided" or (args.until is None and not args.resume):
        raise UsageError(
            "say when to stop: --until good, --until bad or --until N; or --experiment NAME, until it is decided"
        )
    onnxruntime = configs.BACKEND.only("allow_approximation", "timing_seconds")
    recorded = Group("", groups.STATISTICS, CAMPAIGN, OPTIONS, groups.STORE, onnxruntime)
    configs.refuse(args, recorded, "is for a campaign; add --experiment NAME")
    # The child resolves the loader, since TensorRT's own objects cannot be sent to it.
    loader = Unresolved(SaveBytes(loading.engine_bytes(args), artifact))
    check = repeat.check_of(args, artifact)
    if not args.artifacts and args.save_tactics:
        args.artifacts = [args.save_tactics]  # each build writes it again
    config = repeat.repeat_config(args.but(load_debug_replay=None, save_debug_replay=None), artifact)
    exit_on_bad = bool(args.exit_on_bad)

    def run() -> int:
        # These import TensorRT and multiprocessing, which help does not need.
        from trtops.backend.trt import library
        from trtops.backend.worker import Worker

        library.load()
        # A warm child process builds, so that a crash is a verdict.
        with contextlib.closing(Worker()) as worker:
            return repeat.repeat_job(
                check, config, lambda number: worker.run(_build_once, loader), exit_on_bad=exit_on_bad
            )()

    return run


def _campaign(args: Options) -> Job:
    """Return the job of a campaign, new or resumed."""
    options = {"resume": args.resume, "allow_scripts": bool(args.allow_scripts), "progress": _say_progress}
    if args.resume and args.model_file is None:
        return op_job(args, "debug_build", None, None, store="reads", experiment=args.experiment, **options)
    if loading.wants_onnx_changes(args) or loading.model_type(args) != "onnx":
        raise UsageError(
            "a campaign builds an unchanged ONNX file; change it first with `trtops surgeon` or `trtops convert`"
        )
    for name in ("artifacts", "iter_info", "save_tactics"):
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')}: a campaign records everything; see `trtops runs`")
    config = configs.make(
        args,
        "DebugBuildConfig",
        configs.check_values(args),
        build=configs.build_config(args, args.backend or "tensorrt"),
        command=configs.command_check(args, ARTIFACT, "{engine}") if args.check else None,
        calibration_cache=args.calibration_cache,
        vary=ops.Vary(random_tactics=bool(args.random_tactics)),
        until=args.until,
    )
    return op_job(
        args,
        "debug_build",
        args.model_file,
        config,
        store="reads" if args.resume else "temporary",
        experiment=args.experiment,
        **options,
    )


def _say_progress(progress: Progress) -> None:
    if progress.last is not None:
        say(f"iteration {progress.last.number}: {progress.last.verdict} ({progress.done} of at most {progress.limit})")
    elif progress.mixtures:
        say(f"mixture {progress.mixtures} of a good and a bad build")


def _build_once(loader: Unresolved) -> None:
    loader()  # what it returns stays in the child
