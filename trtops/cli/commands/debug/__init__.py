"""The shorter commands of ``trtops debug``; the others are modules of their own."""

from __future__ import annotations

from typing import Any

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, no_verdict, op_job
from trtops.cli.logs import say, say_ending


def _show(result: Any, store: str | None) -> None:
    say(result.text())
    say_ending(result, store)


@command(
    groups.ONNX_MODEL,
    Group(
        "comparison",
        flag(
            "--emulate {fp16,bf16}",
            "instead of an engine: 16 bit, rounded on the CPU as a GPU rounds",
            usual="an engine",
        ),
    ),
    configs.config_flags("comparison", "AccuracyConfig", {"window_bytes": "--window"}),
    groups.JSON,
    groups.TRACKING,
    configs.BACKEND,
    groups.STATISTICS,
    groups.SOURCE,
    groups.SPEC,
    examples=(
        "trtops debug accuracy model.onnx --trt --fp16 --load-inputs inputs.json",
        "trtops debug accuracy model.onnx --emulate fp16",
        "trtops debug accuracy model.onnx --onnxrt --allow-approximation",
    ),
)
def accuracy(args: Options) -> Job:
    """Find out where an engine goes wrong.

    Every tensor of the model is compared with the model itself, in the order of execution. Exits with 1 if outputs
    differ.
    """
    build = None if args.emulate else configs.build_config(args, args.backend or "tensorrt")
    return op_job(
        args,
        "accuracy",
        args.model_file,
        ops.Emulated(args.emulate) if build is None else build,
        configs.make(args, "AccuracyConfig", configs.check_values(args, "")),
        store="optional",
        experiment=args.experiment,
        show=_show,
    )


@command(
    Group(
        "runs",
        flag("run", "a campaign of `trtops debug build`, or one of its good builds"),
        flag("bad?", "a bad build of the same campaign, if the first is a good build"),
    ),
    configs.config_flags("bisection", "BisectConfig"),
    groups.STORE,
    groups.JSON,
    examples=("trtops debug bisect 8d6e3f", "trtops debug bisect 11b2c9 77e0aa --max-builds 30"),
)
def bisect(args: Options) -> Job:
    """Find the choice that makes a build bad, by building mixtures of a good and a bad build.

    Give a campaign of `trtops debug build`, whose most similar good and bad builds are taken, or a good and a bad build
    of one. Exits with 1 if no culprit is confirmed.
    """
    config = configs.make(args, "BisectConfig")
    return op_job(args, "bisect", args.run, args.bad, config, store="reads", progress=("Bisecting", "builds"))


@command(
    Group("run", flag("run", "a campaign of `trtops debug build`")),
    configs.config_flags("measuring", "NoiseConfig"),
    groups.STORE,
    groups.JSON,
    examples=("trtops debug noise 8d6e3f", "trtops debug noise 8d6e3f --builds 16 --runs 4 --statistic mean_abs"),
)
def noise(args: Options) -> Job:
    """Report how much runs, builds and the precision add to the error of a campaign's engines.

    The engines are run repeatedly, their errors split, and a limit proposed that they stay below.
    """
    config = configs.make(args, "NoiseConfig")
    progress = ("Measuring", "engines")
    return op_job(args, "noise", args.run, config, store="reads", progress=progress, code=no_verdict)


@command(
    Group("run", flag("run", "a campaign of `trtops debug build`")),
    configs.config_flags("proof", "ProveConfig"),
    groups.STORE,
    groups.JSON,
    examples=("trtops debug prove 8d6e3f", "trtops debug prove 8d6e3f --suspect 1 --repeats 5 --no-deny"),
)
def prove(args: Options) -> Job:
    """Test a campaign's suspect: put it into a good build, and take it out of a bad one, by replay.

    A confirmed suspect goes on the deny-list, which later builds respect. Exits with 1 if it is refuted, or cannot be
    swapped alone.
    """
    config = configs.make(args, "ProveConfig")
    return op_job(args, "prove", args.run, config, store="reads", progress=("Proving", "builds"))
