"""Lint: problems of a model file, node by node."""

from collections.abc import Mapping
from pathlib import Path

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx import lint as linting
from trtops.backend.onnx.lint import LintEntry, LintReport
from trtops.backend.onnx.load_without_weights import ModelWithoutWeights
from trtops.backend.onnx.model import Model, input_specs
from trtops.metadata import Shape, TensorMetadata, is_dynamic
from trtops.ops.model.model_files import Source, inputs_with_shapes


def lint(model: Source, *, input_shapes: Mapping[str, Shape] | None = None, feed: "Feed | None" = None) -> LintReport:
    """Check a model, which is not changed; see :func:`trtops.backend.onnx.lint.lint`.

    The model is run on ``feed``, or on random data in which dynamic dimensions without a shape in ``input_shapes`` are
    1. A file that is not a model, or whose external data is missing, is a finding as well. ConfigError if there is no
    input with the name of a shape.
    """
    try:
        # Large weights are left out where no finding can depend on their values: they take most of the time.
        if isinstance(model, (str, Path)):
            bare = linting.load_for_lint(model)
        else:
            bare = ModelWithoutWeights(model.proto() if isinstance(model, Model) else model)
    except errors.InvalidModelError as exc:
        entry = LintEntry(level="exception", source="onnx_loader", message=str(exc))
        return LintReport(passing=(), failing=(), unchecked=(), entries=(entry,))
    if input_shapes and feed is None:
        from trtops.ops.evaluation.data import open_feeds  # slow to import, and rarely needed

        fixed = {name: tuple(1 if is_dynamic(dim) else dim for dim in shape) for name, shape in input_shapes.items()}
        inputs = inputs_with_shapes(TensorMetadata.of(input_specs(bare.model.graph)), fixed)
        feed = next(iter(open_feeds(None, TensorMetadata.of(inputs[name] for name in fixed))))
    return linting.lint(bare, feed, path=model if isinstance(model, (str, Path)) else None)
