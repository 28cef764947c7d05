"""The command ``trtops calibrate``."""

from __future__ import annotations

from dataclasses import replace

from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, UsageError, flag
from trtops.cli.jobs import Job, command, op_job


@command(
    groups.ONNX_MODEL,
    configs.config_flags("calibration", "CalibrateConfig", {"output": "-o --output"}, skip="check build data"),
    Group("building", flag("--keep LAYER+", "layers that stay in higher precision: names, patterns or types")),
    groups.TRACKING,
    configs.BACKEND,
    Group(
        "evaluation",
        flag("--check-data PATH", "data to evaluate engines with, best held-out data (default: the calibration data)"),
        groups.STATISTICS,
    ),
    configs.config_flags("evaluation", "CalibrateConfig", skip="build data output samples batch min_samples pictures"),
    groups.SOURCE,
    groups.SPEC.without("--int8"),
    examples=("trtops calibrate model.onnx --load-inputs images.json -o int8.cache --experiment resnet50",),
)
def calibrate(args: Options) -> Job:
    """Find INT8 ranges from real data, and compare INT8 with other precisions.

    The calibration cache that it writes fits any build. Exits with 1 if the INT8 engine is not good enough.
    """
    data = configs.data_source(args)
    if data is None:
        raise UsageError(
            "calibration needs real data, since random data has other ranges: use --load-inputs or --data-loader-script"
        )
    args.int8 = True
    build = replace(configs.build_config(args, args.backend or "onnxruntime"), keep=tuple(args.keep or ()))
    check = configs.check_values(args) | {"check.data": args.check_data}
    config = configs.make(args, "CalibrateConfig", check, data=data, build=build)
    return op_job(
        args,
        "calibrate",
        args.model_file,
        config,
        store="temporary",
        experiment=args.experiment,
        progress=("Calibrating", "samples"),
    )
