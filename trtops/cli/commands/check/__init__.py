"""The commands of ``trtops check``; ``accuracy`` is a module of its own."""

from __future__ import annotations

import json
from pathlib import Path

from trtops import ops
from trtops.cli import configs, groups, loading
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.logs import say, say_json
from trtops.cli.script import loaded, resolve
from trtops.metadata import TensorMetadata

_RANDOM = ("seed", "val_range", "int_min", "int_max", "float_min", "float_max", "data_loader_backend_module")


@command(
    groups.ONNX_MODEL,
    Group("back end (default: TensorRT)", configs.BACKEND.only("backend")),
    groups.JSON,
    examples=("trtops check compatibility model.onnx --onnxrt", "trtops check compatibility model.onnx --trt"),
)
def compatibility(args: Options) -> Job:
    """Report whether a back end supports every node of a model, and which it does not.

    Exits with 1 if some are not supported.
    """
    backend, code = args.backend or "tensorrt", lambda report: int(not report.supported)
    return op_job(args, "capability", args.model_file, backend, partition=False, code=code)


@command(
    groups.ONNX_MODEL,
    Group("shapes", groups.INPUT_SHAPES),
    Group("report", flag("-o --output FILE", "where to write the report, as JSON", to="output")),
    groups.JSON,
    groups.ONNX_LOAD,
    groups.DATA.without("--iterations"),
    groups.ONE_FEED,
    groups.PROVIDERS.idle("each node is checked as it is, on the CPU, without optimization"),
    examples=("trtops check lint model.onnx", "trtops check lint model.onnx --input-shapes x:[4,3,8,8] -o report.json"),
)
def lint(args: Options) -> Job:
    """Find everything that is wrong with an ONNX model, node by node, in one pass.

    Exits with 1 if something is.
    """
    args.iterations = None
    model, loader, as_json = loading.changed_model(args), loading.data_loader(args), bool(args.json)
    described = any([getattr(args, name) is not None for name in _RANDOM])
    if loader is not None and loader.function.endswith(".DataLoader") and not described:
        loader = None  # only shapes were given, which the op takes itself
    shapes = {} if described else loading.input_shapes(args) or {}
    output = args.output

    def run() -> int:
        source, data, feed = loaded(model), resolve(loader), None
        if data is not None:
            if hasattr(data, "input_metadata"):
                data.input_metadata = TensorMetadata.of(ops.open_model(source).info.inputs)
            feed = next(iter(data))
        result = ops.lint(source, input_shapes=shapes, feed=feed)
        if output is not None:
            Path(output).write_text(json.dumps(result.to_lint_json(), indent=1), encoding="utf-8")
        if as_json:
            say_json(result.to_lint_json())
        else:
            say(result.text())
        return int(not result.ok)

    return run
