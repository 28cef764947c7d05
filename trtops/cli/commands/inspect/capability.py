"""Report which nodes of a model a back end supports, and why not the others.

With partitioning the model is cut into supported and unsupported parts. The exit code is 0, as in Polygraphy; --exit-on-bad
makes it 1 if some nodes are not supported.
"""

from __future__ import annotations

from typing import Any

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job
from trtops.cli.logs import say, say_json
from trtops.cli.script import loaded

GROUPS = (
    groups.ONNX_MODEL,
    Group(
        "capability",
        (
            flag(
                "-o --output --output-dir FOLDER",
                "where to write the report and the parts",
                to="output",
                default="trtops_capability_dumps",
            ),
            flag("--with-partitioning", "write the parts as models"),
            flag("--onnxrt", "check ONNX Runtime, not TensorRT", to="backend", value="onnxruntime"),
            flag("--input-shapes NAME:[DIMS]+", "shapes of inputs"),
            flag("--exit-on-bad", "exit with 1 if some nodes are not supported"),
        ),
    ),
    groups.JSON,
    Group(
        "saving parts",
        (
            flag(
                "--save-external-data --external-data-path FILE?",
                "keep weights next to each part, in <part>.data",
                usual="in the model file",
                value="",
                choices=("",),
                shown="",
            ),
            *groups.SAVE_AS.without("--save-external-data").flags,
        ),
    ),
    *groups.ONNX,
)
EXAMPLES = ("trtops inspect capability model.onnx --with-partitioning", "trtops inspect capability model.onnx --onnxrt")


def plan(args: Options) -> Job:
    """Return the job."""
    partition = bool(args.with_partitioning)
    config = ops.CapabilityConfig(
        backend=args.backend or "tensorrt",
        partition=partition,
        output_dir=args.output if partition else None,
        save_as=loading.save_config(args) if partition else ops.SaveConfig(),
        input_shapes=loading.input_shapes(args) or {},
    )
    model = loading.onnx_model(args.but(model_type="onnx")) if loading.wants_onnx_changes(args) else args.model_file
    report = f"{args.output}/results.txt"
    return Job(call=_inspect, args=(model, config, report, bool(args.json), bool(args.exit_on_bad)))


def _inspect(model: Any, config: Any, path: str, as_json: bool, exit_on_bad: bool) -> int:
    report = ops.capability(loaded(model), config)
    save_bytes(f"{report.text()}\n".encode(), path)
    if as_json:
        say_json(report.to_dict())
    else:
        say(report.text())
    return 1 if exit_on_bad and not report.supported else 0
