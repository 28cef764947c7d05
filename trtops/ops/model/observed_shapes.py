"""Shapes of a model's tensors as they are when it runs, for models whose shapes cannot be inferred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx import edit
from trtops.backend.onnx.readable import readable_values
from trtops.backend.onnx.submodel import Cutter, Values
from trtops.backend.onnxrt.observe import observe
from trtops.metadata import TensorMetadata, check_feed
from trtops.ops.evaluation.feeds import open_feeds
from trtops.ops.model.opening import open_model


def with_observed_shapes(
    model: str | Path | onnx.ModelProto, feeds: str | Path | Iterable[Feed] | None = None
) -> onnx.ModelProto:
    """Run a model once, and write the shape and type that each tensor had into it.

    Inputs and outputs as well: dimensions that were dynamic are static afterwards.

    Args:
        model: The model, or its path; not changed.
        feeds: Where inputs come from (:func:`trtops.ops.evaluation.feeds.open_feeds`), of which the first feed is used; random
            unless given.

    Returns:
        A copy with all shapes known that the run had, sub-graphs left as they are.

    Raises:
        ModelError: If the model cannot be used.
        InputError: If the data does not fit it.
        BackendError: If ONNX Runtime does not run it.
    """
    opened = open_model(model)
    inputs = TensorMetadata.of(opened.info.inputs)
    feed = (
        dict(next(iter(open_feeds(feeds, inputs, readable=lambda: readable_values(opened.structure())))))
        if inputs
        else {}
    )
    check_feed(inputs, feed)
    proto = onnx.ModelProto()
    proto.CopyFrom(opened.proto())
    cutter = Cutter(proto)
    observed = observe(cutter, [feed])
    try:
        _declare_values(proto.graph, {value.name: value for value in _observed_values(cutter, observed, list(feed))})
    finally:
        observed.close()
    return proto


def _observed_values(cutter: Cutter, observed: Values, inputs: Iterable[str]) -> Iterator[onnx.ValueInfoProto]:
    """Type and shape of each tensor that had a value; what was not a tensor, or not read, is left out."""
    for name in (*inputs, *(name for index in cutter.order for name in cutter.makes(index) if name)):
        try:
            spec = observed.spec(name)
        except errors.InvalidModelError:
            continue
        if spec.dtype is not None:
            yield onnx.helper.make_tensor_value_info(name, edit.element_type(spec.dtype), spec.shape)


def _declare_values(graph: onnx.GraphProto, values: Mapping[str, onnx.ValueInfoProto]) -> None:
    declared = [value for value in graph.value_info if value.name not in values]
    outside = {value.name for value in (*graph.input, *graph.output)}
    for value in (*graph.input, *graph.output):
        if value.name in values:
            value.type.CopyFrom(values[value.name].type)
    del graph.value_info[:]
    graph.value_info.extend([*declared, *(value for name, value in values.items() if name not in outside)])
