"""Lint: problems of a model file, node by node."""

from collections.abc import Mapping
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
    1. A file that is not a model, or whose external data is missing, is a finding as well. ConfigError if there is no
    input with the name of a shape.

    >>> report = lint("model.onnx")
    >>> report.failing, len(report.passing)
    ((), 9)
    """
    if input_shapes and feed is None:
        from trtops.ops.evaluation.data import open_feeds  # slow to import, and rarely needed

        fixed = {name: tuple(1 if is_dynamic(dim) else dim for dim in shape) for name, shape in input_shapes.items()}
        try:
            proto = read_proto(model, need_opset=False) if isinstance(model, (str, Path)) else model
        except errors.InvalidModelError:
            return linting.lint(model)  # which reports it
        graph = (proto.structure() if isinstance(proto, Model) else proto).graph
        inputs = inputs_with_shapes(TensorMetadata.of(input_specs(graph)), fixed)
        feed = next(iter(open_feeds(None, TensorMetadata.of(inputs[name] for name in fixed))))
    return linting.lint(model, feed)
