"""The command ``trtops gate``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.script import late

if TYPE_CHECKING:
    from trtops.ops.gate.op import GateConfig


@command(
    Group(
        "candidates",
        flag("models+", "ONNX models", shown="MODEL"),
        flag(
            "--release NAME=PATH+",
            "releases: constraints files of pip (.txt), each made into an environment, or environments "
            "(default: this one)",
        ),
        flag(
            "--precisions {fp32,fp16,bf16,fp8,int8}+",
            "precisions to build in, instead of --fp16 and so on",
            usual="the one given",
        ),
    ),
    Group(
        "evaluation",
        flag("--policy FILE", "what passes (YAML): limits by statistic, output and precision"),
        flag("--accepted-release NAME=PATH+", "releases that accepted engines may need, as in --release"),
        flag("--no-register", "give no alias to an accepted candidate"),
    ),
    configs.config_flags("evaluation", "GateConfig", skip="build policy release register"),
    configs.BACKEND,
    groups.SPEC,
    groups.SOURCE,
    groups.TRACKING,
    groups.JSON,
    examples=(
        "trtops gate model.onnx --fp16 --trt --policy gate.yaml",
        "trtops gate resnet50.onnx bert.onnx --precisions fp32 int8 --release old=ort-1.30.txt new=ort-1.31.txt",
        "trtops gate model.onnx --candidate 8d6e3f --no-register",
    ),
)
def gate(args: Options) -> Job:
    """Build a candidate and compare it with the accepted engine: accuracy, latency, size, build time, layers.

    Several models, precisions or releases make a matrix. A candidate that passes is accepted and gets the
    alias. Exits with 1 if one is not accepted.
    """
    config = configs.make(
        args,
        "GateConfig",
        configs.data_values(args, "check."),
        build=configs.build_config(args, args.backend or "onnxruntime"),
        others=tuple(map(ops.Release.parse, args.accepted_release or ())),
        register=not args.no_register,
    )
    if args.policy is not None:
        config = late("trtops.cli.commands.gate.with_policy", config, args.policy)
    return op_job(
        args,
        "gate_all",
        tuple(args.models),
        config,
        store="writes",
        releases=tuple(map(ops.Release.parse, args.release or ())),
        precisions=tuple(args.precisions or ()),
        experiment=args.experiment,
        progress=("Gating", "candidates"),
    )


def with_policy(config: GateConfig, path: str) -> GateConfig:
    """Return the config with the policy of a file."""
    return replace(config, policy=ops.read_policy(path))
