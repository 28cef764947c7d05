"""Find INT8 ranges from real data, and evaluate INT8 next to other precisions.

The calibration cache that it writes fits any build. Exits with 1 if the INT8 engine is not good enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group, UsageError
from trtops.cli.logs import say_result
from trtops.terminal import progress

if TYPE_CHECKING:
    from trtops.ops.engines.calibrate import CalibrateConfig

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "calibration",
        (
            Flag(names=("-o", "--output"), to="output", shown="FILE", help="where to write the cache: JSON if it ends in .json, else TensorRT's text"),
            Flag(names=("--algorithm",), usual="entropy", choices=("entropy", "minmax", "percentile"), help="how ranges are chosen"),
            Flag(names=("--percentile",), usual="99.99", convert=float, help="for the algorithm of that name"),
            Flag(names=("--calibrator",), usual="onnxruntime", choices=("onnxruntime", "tensorrt"), help="what runs the model"),
            Flag(names=("--samples",), usual="512", convert=int, shown="N", help="samples to use at most"),
            Flag(names=("--batch",), usual="as the data comes", convert=int, shown="N", help="samples per feed"),
            Flag(names=("--compare-with",), usual="fp32 fp16", takes="any", choices=("fp32", "fp16", "bf16", "fp8"), shown="PRECISION", help="precisions to compare INT8 with"),
            Flag(names=("--keep",), takes="many", shown="LAYER", help="layers that stay in higher precision: names, patterns or types"),
            groups.IN_ITS_PRECISION,
        ),
    ),
    groups.TRACKING, configs.BACKEND,
    Group("evaluation", (
        Flag(names=("--check-data",), shown="PATH", help="data that engines are evaluated with; best data that was held out; the calibration data unless given"),
        Flag(names=("--labels",), shown="FILE", help="an .npy file with the right class of every sample of that data"),
        *groups.STATISTICS.flags,
    )),
    groups.SOURCE, groups.SPEC.without("--int8"),
)  # fmt: skip
EXAMPLES = ("trtops calibrate model.onnx --load-inputs images.json -o int8.cache --experiment resnet50",)


@dataclass(frozen=True)
class Plan:
    """What to calibrate.

    Attributes:
        model: The model.
        config: The op's config.
        experiment: Where to remember it.
        store: Where the memory is.
    """

    model: str
    config: CalibrateConfig
    experiment: str | None
    store: str | None


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    data = configs.data_source(args)
    if data is None:
        raise UsageError(
            "real data is needed, since random data has other ranges: give it by --load-inputs or --data-loader-script"
        )
    args.int8 = True
    check = replace(configs.check_config(args), data=args.check_data, labels=args.labels)
    build = replace(configs.build_config(args, args.backend or "onnxruntime"), keep=tuple(args.keep or ()))
    given = {
        "algorithm": args.algorithm, "percentile": args.percentile, "calibrator": args.calibrator, "samples": args.samples,
        "batch": args.batch, "compare_with": None if args.compare_with is None else tuple(args.compare_with),
    }  # fmt: skip
    config = ops.CalibrateConfig(
        data=data, build=build, check=check, output=args.output, **{n: v for n, v in given.items() if v is not None}
    )
    return Plan(args.model_file, config, args.experiment, args.store)


def execute(plan: Plan) -> int:
    """Calibrate, and print."""
    tracker = memory.kept_or_forgotten(plan.experiment, plan.store)
    with progress("Calibrating", "samples") as bar:
        result = ops.calibrate(
            plan.model, plan.config, tracker=tracker, experiment=plan.experiment, progress=bar.update
        )
    say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1
