"""The command ``trtops sensitivity``."""

from __future__ import annotations

from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.tracking.ids import RUN_PREFIX


@command(
    groups.ONNX_MODEL,
    Group(
        "measuring",
        flag("--calibration-cache FILE", "the ranges: a cache of either format, or run:<id>", required=True),
    ),
    configs.config_flags("measuring", "SensitivityConfig", skip="data"),
    groups.TRACKING,
    groups.SOURCE.without("--seed", "--iterations"),
    examples=("trtops sensitivity model.onnx --calibration-cache int8.cache --load-inputs images.json --budget 0.01",),
)
def sensitivity(args: Options) -> Job:
    """Measure what each layer costs in INT8, and propose layers to keep in higher precision.

    Exits with 1 if the error budget cannot be met.
    """
    return op_job(
        args,
        "sensitivity",
        args.model_file,
        args.calibration_cache,
        configs.make(args, "SensitivityConfig", data=configs.data_source(args)),
        store="reads" if args.calibration_cache.startswith(RUN_PREFIX) else "temporary",
        experiment=args.experiment,
        progress=("Measuring", "layers"),
    )
