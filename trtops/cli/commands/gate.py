"""Build a candidate and hold it against the accepted engine: accuracy, latency, size, memory, build time, what is inside.

Several models, precisions, devices or releases make a matrix. A candidate that passes is accepted and gets the alias.
Exits with 1 if one is not accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say_json, say_result
from trtops.terminal import progress

if TYPE_CHECKING:
    from trtops.ops.gate.matrix import MatrixConfig

GROUPS = (
    Group(
        "candidates",
        (
            Flag(names=("models",), takes="many", shown="MODEL", help="ONNX models"),
            Flag(
                names=("--release",),
                takes="many",
                shown="NAME=PATH",
                help="releases: constraints files of pip (.txt), each made into an environment, or environments (default: this one)",
            ),
            Flag(
                names=("--precisions",),
                usual="the one asked for",
                takes="many",
                choices=("fp32", "fp16", "bf16", "fp8", "int8"),
                help="precisions to build in, in place of --fp16 and so on",
            ),
            Flag(
                names=("--devices",),
                takes="many",
                shown="DEVICE",
                help="GPUs as CUDA_VISIBLE_DEVICES names them; cpu is the processor",
            ),
            Flag(names=("--candidate",), shown="RUN", help="a candidate that was built before, in place of a build"),
            Flag(names=("--calibration-cache",), shown="FILE", help="ranges for INT8, in place of calibrating"),
            Flag(
                names=("--build-timeout",),
                usual="1800",
                convert=float,
                shown="SECONDS",
                help="how long a build may take",
            ),
        ),
    ),
    Group(
        "evaluation",
        (
            Flag(
                names=("--policy",), shown="FILE", help="what passes (YAML): limits by statistic, output and precision"
            ),
            Flag(
                names=("--accepted",), shown="RUN", help="the engine to compare with (default: the last accepted one)"
            ),
            Flag(
                names=("--accepted-release",),
                takes="many",
                shown="NAME=PATH",
                help="releases that accepted engines may need, as --release takes them",
            ),
            Flag(names=("--golden",), shown="FILE", help="saved outputs to compare with (default: the model's own)"),
            Flag(names=("--labels",), shown="FILE", help="the right class of every sample (.npy)"),
            Flag(names=("--name",), help="the registered model (default: the model file's name)"),
            Flag(names=("--no-register",), takes="switch", help="give no alias to what is accepted"),
        ),
    ),
    configs.BACKEND,
    groups.SPEC,
    groups.SOURCE,
    groups.TRACKING,
    groups.JSON,
)
EXAMPLES = (
    "trtops gate model.onnx --fp16 --trt --policy gate.yaml",
    "trtops gate resnet50.onnx bert.onnx --precisions fp32 int8 --release old=ort-1.30.txt new=ort-1.31.txt",
    "trtops gate model.onnx --candidate 8d6e3f --no-register",
)


@dataclass(frozen=True)
class Plan:
    """What to gate.

    Attributes:
        config: The combinations; for a single one its gate's config.
        policy: The policy's file; the usual limits without one.
        experiment: Where to remember it.
        store: Where the memory is.
        json: Whether to print JSON.
    """

    config: MatrixConfig
    policy: str | None
    experiment: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    build = configs.build_config(args, args.backend or "onnxruntime")
    precisions = tuple(args.precisions or (build.precision,))
    check = replace(ops.GateConfig().check, golden=args.golden, labels=args.labels, **configs.data_options(args))
    config = ops.GateConfig(
        build=build,
        check=check,
        accepted=args.accepted,
        others=tuple(map(ops.Release.parse, args.accepted_release or ())),
        calibration_cache=args.calibration_cache,
        name=args.name,
        register=not args.no_register,
        **configs.given(timeout_seconds=args.build_timeout),
    )
    matrix = ops.MatrixConfig(
        models=tuple(args.models),
        releases=tuple(map(ops.Release.parse, args.release or ())) or (config.release,),
        precisions=precisions,
        devices=tuple(args.devices or ()),
        gate=config,
    )
    if args.candidate is not None:
        if len(matrix.cells()) > 1:
            raise UsageError("--candidate needs a single model, release, precision and device")
        matrix = replace(matrix, gate=replace(config, candidate=args.candidate))
    return Plan(matrix, args.policy, args.experiment, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Gate, and tell."""
    config = plan.config
    if plan.policy is not None:
        config = replace(config, gate=replace(config.gate, policy=ops.read_policy(plan.policy)))
    with progress("Gating", "candidates") as bar:
        result = ops.gate_all(
            config, tracker=memory.opened(plan.store), experiment=plan.experiment, progress=bar.update
        )
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1
