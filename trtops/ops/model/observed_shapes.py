"""Shapes of a model's tensors observed in a run, for models without inferable shapes."""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import onnx

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.edit import element_type
from trtops.backend.onnx.submodel import Cutter
from trtops.backend.onnxrt.observe import observe
from trtops.comparator.data_loader import DataLoader
from trtops.metadata import TensorMetadata, check_feed
from trtops.ops.evaluation.data import open_feeds
from trtops.ops.model.model_files import open_model


def with_observed_shapes(
    model: str | Path | onnx.ModelProto, feeds: str | Path | Iterable[Feed] | None = None
) -> onnx.ModelProto:
    """Run a model once, and return a copy with its tensors' actual shapes and types, except those in sub-graphs.

    Dynamic dimensions of inputs and outputs become static as well. The first feed of the source is used, by
    default random data with 1 for dynamic dimensions.

    InputError if the data does not fit the model; BackendError if ONNX Runtime does not run it.
    """
    opened = open_model(model)
    inputs = TensorMetadata.of(opened.info.inputs)
    feed: Feed = {}
    if inputs:
        source = DataLoader() if feeds is None else feeds
        feed = dict(next(iter(open_feeds(source, inputs))))
    check_feed(inputs, feed)
    proto = opened.proto()
    graph = proto.graph
    cutter = Cutter(proto)
    observed = observe(cutter, [feed])
    values: dict[str, onnx.ValueInfoProto] = {}
    try:
        for name in chain(feed, *map(cutter.makes, cutter.order)):
            try:
                spec = observed.spec(name)
            except errors.InvalidModelError:
                continue  # it is not a tensor, or nothing reads it
            if spec.dtype is not None:
                values[name] = onnx.helper.make_tensor_value_info(name, element_type(spec.dtype), spec.shape)
    finally:
        observed.close()
    for value in (*graph.input, *graph.output):
        if value.name in values:
            value.type.CopyFrom(values[value.name].type)
    # Inputs and outputs declare their own types; value_info is for the tensors between them.
    outside = {value.name for value in (*graph.input, *graph.output)}
    declared = [value for value in graph.value_info if value.name not in values]
    del graph.value_info[:]
    graph.value_info.extend([*declared, *(value for name, value in values.items() if name not in outside)])
    return proto
