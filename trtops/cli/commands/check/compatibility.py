"""Report whether a back end supports every node of a model, and which it does not. Exits with 1 if some are not supported."""

from __future__ import annotations

from typing import Any

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options
from trtops.cli.jobs import Job, op_job

GROUPS = (groups.ONNX_MODEL, Group("back end (default: TensorRT)", configs.BACKEND.only("backend").flags), groups.JSON)
EXAMPLES = ("trtops check compatibility model.onnx --onnxrt", "trtops check compatibility model.onnx --trt")


def plan(args: Options) -> Job:
    """Return the job."""
    config = ops.CapabilityConfig(backend=args.backend or "tensorrt", partition=False)
    return op_job(args, "capability", args.model_file, config, code=_unsupported)


def _unsupported(report: Any) -> int:
    return int(not report.supported)
