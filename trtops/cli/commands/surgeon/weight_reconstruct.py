"""Put weights back into a stripped model: those of the original, or random ones of the same types and shapes."""

from __future__ import annotations

from trtops.cli import groups, surgery
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job

GROUPS = (
    groups.ONNX_MODEL,
    Group("weights", (flag("--original FILE", "the model with the weights (default: random weights)"),)),
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
)
EXAMPLES = ("trtops surgeon weight-reconstruct structure.onnx -o random.onnx",)


def plan(args: Options) -> Job:
    """Return the job."""
    return surgery.job(args, "reconstruct_weights", original=args.original)
