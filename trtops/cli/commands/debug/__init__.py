"""The shorter commands of ``trtops debug``; the others are modules of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Command, Job, no_verdict, op_job
from trtops.cli.logs import say, say_ending

if TYPE_CHECKING:
    from trtops.ops.search.accuracy import AccuracyResult


def _accuracy_job(args: Options) -> Job:
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


def _show(result: AccuracyResult, store: str | None) -> None:
    say(result.text())
    say_ending(result, store)


def _bisect_job(args: Options) -> Job:
    config = configs.make(args, "BisectConfig")
    return op_job(args, "bisect", args.run, args.bad, config, store="reads", progress=("Bisecting", "builds"))


def _noise_job(args: Options) -> Job:
    config = configs.make(args, "NoiseConfig")
    progress = ("Measuring", "engines")
    return op_job(args, "noise", args.run, config, store="reads", progress=progress, code=no_verdict)


def _prove_job(args: Options) -> Job:
    config = configs.make(args, "ProveConfig")
    return op_job(args, "prove", args.run, config, store="reads", progress=("Proving", "builds"))


COMMANDS = {
    "accuracy": Command(
        _accuracy_job,
        (
            groups.ONNX_MODEL,
            Group(
                "comparison",
                (
                    flag(
                        "--emulate CHOICE",
                        "instead of an engine: 16 bit, rounded on the CPU as a GPU rounds",
                        usual="an engine",
                        choices=("fp16", "bf16"),
                    ),
                ),
            ),
            configs.config_flags("comparison", "AccuracyConfig", {"window_bytes": "--window"}),
            groups.JSON,
            groups.TRACKING,
            configs.BACKEND,
            groups.STATISTICS,
            groups.SOURCE,
            groups.SPEC,
        ),
        (
            "trtops debug accuracy model.onnx --trt --fp16 --load-inputs inputs.json",
            "trtops debug accuracy model.onnx --emulate fp16",
            "trtops debug accuracy model.onnx --onnxrt --allow-approximation",
        ),
        "Find out where an engine goes wrong. Every tensor of the model is compared with the model itself, in the "
        "order of execution. Exits with 1 if outputs differ.",
    ),
    "bisect": Command(
        _bisect_job,
        (
            Group(
                "runs",
                (
                    flag("run", "a campaign of `trtops debug build`, or one of its good builds"),
                    flag("bad?", "a bad build of the same campaign, if the first is a good build"),
                ),
            ),
            configs.config_flags("bisection", "BisectConfig"),
            groups.STORE,
            groups.JSON,
        ),
        ("trtops debug bisect 8d6e3f", "trtops debug bisect 11b2c9 77e0aa --max-builds 30"),
        "Find the choice that makes a build bad, by building mixtures of a good and a bad build. Give a campaign "
        "of `trtops debug build`, whose most similar good and bad builds are taken, or a good and a bad build of "
        "one. Exits with 1 if no culprit is confirmed.",
    ),
    "noise": Command(
        _noise_job,
        (
            Group("run", (flag("run", "a campaign of `trtops debug build`"),)),
            configs.config_flags("measuring", "NoiseConfig"),
            groups.STORE,
            groups.JSON,
        ),
        ("trtops debug noise 8d6e3f", "trtops debug noise 8d6e3f --builds 16 --runs 4 --statistic mean_abs"),
        "Report how much runs, builds and the precision add to the error of a campaign's engines, and a limit it "
        "stays below. The engines are run repeatedly, and their errors split.",
    ),
    "prove": Command(
        _prove_job,
        (
            Group("run", (flag("run", "a campaign of `trtops debug build`"),)),
            configs.config_flags("proof", "ProveConfig"),
            groups.STORE,
            groups.JSON,
        ),
        ("trtops debug prove 8d6e3f", "trtops debug prove 8d6e3f --suspect 1 --repeats 5 --no-deny"),
        "Test a campaign's suspect: put it into a good build, and take it out of a bad one, by replay. A confirmed "
        "suspect goes on the deny-list, which later builds respect. Exits with 1 if it is refuted, or cannot be "
        "swapped alone.",
    ),
}
