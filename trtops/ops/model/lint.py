"""Lint: problems of a model file, node by node."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx import lint as linting
from trtops.backend.onnx.lint import LintReport
from trtops.backend.onnx.model import Model, input_specs, read_proto
from trtops.metadata import Shape, TensorMetadata, is_dynamic
from trtops.ops.arguments import checked_arguments
from trtops.ops.model.model_files import Source, inputs_with_shapes


@checked_arguments
def lint(model: Source, *, input_shapes: Mapping[str, Shape] | None = None, feed: "Feed | None" = None) -> LintReport:
    """Check a model without changing it; see :func:`trtops.backend.onnx.lint.lint`.

    The model is run on ``feed``, or on random data in which dynamic dimensions without a shape in ``input_shapes`` are
    1; a report of nodes that failed on these names the shapes. A file that is not a model, or whose external data is
    missing, is a finding as well. ConfigError if there is no input with the name of a shape.

    >>> report = lint("model.onnx")
    >>> report.failing, len(report.passing)
    ((), 9)
    """
    if input_shapes and feed is None:
        from trtops.ops.evaluation.data import DataConfig  # slow to import, and rarely needed

        fixed = {name: tuple(1 if is_dynamic(dim) else dim for dim in shape) for name, shape in input_shapes.items()}
        try:
            proto = read_proto(model, need_opset=False) if isinstance(model, (str, Path)) else model
        except errors.InvalidModelError:
            return linting.lint(model)  # which reports it
        graph = (proto.structure() if isinstance(proto, Model) else proto).graph
        inputs = inputs_with_shapes(TensorMetadata.of(input_specs(graph)), fixed)
        feed = next(iter(DataConfig().open_for(None, inputs=TensorMetadata.of(inputs[name] for name in fixed))))
    report = linting.lint(model, feed)
    if not any((entry.source, entry.level) == ("onnxruntime", "exception") for entry in report.entries):
        return report
    proto = read_proto(model, need_opset=False) if isinstance(model, (str, Path)) else model
    assumed = {}
    for spec in input_specs((proto.structure() if isinstance(proto, Model) else proto).graph):
        shape = (input_shapes or {}).get(spec.name, spec.shape or ())
        if (spec.name not in (feed or {}) or spec.name in (input_shapes or {})) and any(map(is_dynamic, shape)):
            assumed[spec.name] = tuple(1 if is_dynamic(size) else int(str(size)) for size in shape)
    return replace(report, assumed=assumed)
