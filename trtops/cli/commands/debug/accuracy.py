"""Find out where an engine goes wrong.

Every tensor of the model is compared with the model itself, in the order of execution. Exits with 1 if outputs differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, op_job
from trtops.cli.logs import say, say_ending

if TYPE_CHECKING:
    from trtops.ops.search.accuracy import AccuracyResult

GROUPS = (
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
)
EXAMPLES = (
    "trtops debug accuracy model.onnx --trt --fp16 --load-inputs inputs.json",
    "trtops debug accuracy model.onnx --emulate fp16",
    "trtops debug accuracy model.onnx --onnxrt --allow-approximation",
)


def plan(args: Options) -> Job:
    """Return the job."""
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
