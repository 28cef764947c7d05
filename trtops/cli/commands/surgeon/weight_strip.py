"""Remove the weights from an ONNX model, so that its structure can be shared."""

from __future__ import annotations

from trtops.cli import groups, surgery
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job
from trtops.cli.script import late

GROUPS = (
    groups.ONNX_MODEL,
    Group("weights", (flag("--exclude-list FILE", "a file with the names of weights to keep, one per line"),)),
    groups.ONNX_SAVE,
    groups.ONNX_LOAD,
)
EXAMPLES = ("trtops surgeon weight-strip model.onnx -o structure.onnx",)


def plan(args: Options) -> Job:
    """Return the job."""
    kept = late("trtops.cli.surgery.names_in", args.exclude_list) if args.exclude_list else ()
    return surgery.job(args, "strip_weights", exclude=kept)
