"""The commands of ``trtops check``; ``accuracy`` is a module of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtops import ops
from trtops.cli import configs, groups, loading
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Command, Job, op_job
from trtops.cli.logs import say, say_json
from trtops.cli.script import loaded
from trtops.metadata import TensorMetadata


def _compatibility_job(args: Options) -> Job:
    return op_job(args, "capability", args.model_file, args.backend or "tensorrt", partition=False, code=_unsupported)


def _unsupported(report: Any) -> int:
    return int(not report.supported)


_ALONE = "each node is checked as it is, on the CPU, without optimization"


_RANDOM = ("seed", "val_range", "int_min", "int_max", "float_min", "float_max", "data_loader_backend_module")


def _lint_job(args: Options) -> Job:
    args.iterations = None
    model = loading.onnx_model(args.but(model_type="onnx")) if loading.wants_onnx_changes(args) else args.model_file
    loader = loading.data_loader(args)
    described = any([getattr(args, name) is not None for name in _RANDOM])
    if loader is not None and loader.function.endswith(".DataLoader") and not described:
        loader = None  # only shapes were given, which the op takes itself
    shapes = {} if described else loading.input_shapes(args) or {}
    return Job(call=_lint, args=(model, shapes, loader, args.output, bool(args.json)))


def _lint(model: Any, shapes: Any, loader: Any, output: str | None, as_json: bool) -> int:
    model, feed = loaded(model), None
    if loader is not None:
        if hasattr(loader, "input_metadata"):
            loader.input_metadata = TensorMetadata.of(ops.open_model(model).info.inputs)
        feed = next(iter(loader))
    result = ops.lint(model, input_shapes=shapes, feed=feed)
    if output is not None:
        Path(output).write_text(json.dumps(result.to_lint_json(), indent=1), encoding="utf-8")
    if as_json:
        say_json(result.to_lint_json())
    else:
        say(result.text())
    return 0 if result.ok else 1


COMMANDS = {
    "compatibility": Command(
        _compatibility_job,
        (groups.ONNX_MODEL, Group("back end (default: TensorRT)", configs.BACKEND.only("backend").flags), groups.JSON),
        ("trtops check compatibility model.onnx --onnxrt", "trtops check compatibility model.onnx --trt"),
        "Report whether a back end supports every node of a model, and which it does not. Exits with 1 if some are "
        "not supported.",
    ),
    "lint": Command(
        _lint_job,
        (
            groups.ONNX_MODEL,
            Group("shapes", (groups.INPUT_SHAPES,)),
            Group("report", (flag("-o --output FILE", "where to write the report, as JSON", to="output"),)),
            groups.JSON,
            groups.ONNX_LOAD,
            groups.DATA.without("--iterations"),
            groups.ONE_FEED,
            Group(
                groups.PROVIDERS.title,
                tuple(replace(each, idle=_ALONE, choices=None, usual="") for each in groups.PROVIDERS.flags),
            ),
        ),
        ("trtops check lint model.onnx", "trtops check lint model.onnx --input-shapes x:[4,3,8,8] -o report.json"),
        "Find everything that is wrong with an ONNX model, node by node, in one pass. Exits with 1 if something is.",
    ),
}
