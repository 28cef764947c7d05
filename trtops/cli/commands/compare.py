"""The command ``trtops compare``."""

from __future__ import annotations

from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.tracking.ids import RUN_PREFIX


@command(
    Group(
        "sides",
        flag("actual", "the side under test: run:<id>, .onnx, .engine, .plan, .ort, .json or .npz"),
        flag("golden", "the reference"),
    ),
    Group(groups.STATISTICS.title, groups.STATISTICS, groups.COMPARING.only("infinities_compare_equal")),
    groups.SOURCE,
    groups.TRACKING,
    groups.JSON,
    examples=(
        "trtops compare run:8d6e3f model.onnx --experiment resnet50",
        "trtops inspect diff actual.json expected.json --rtol 1e-3",
    ),
)
def compare(args: Options) -> Job:
    """Compare two sides, output by output.

    A side is a run of the store (run:<id>), an ONNX file, an engine file, or a file of saved outputs. The second side
    is the reference. Exits with 1 if they differ.
    """
    sides = (args.actual, args.golden)
    stored = any(side.startswith(RUN_PREFIX) for side in sides)
    return op_job(
        args,
        "compare",
        *sides,
        configs.make(args, "CheckConfig", configs.check_values(args, prefix="")),
        store="reads" if stored else "temporary",
        experiment=args.experiment,
    )
