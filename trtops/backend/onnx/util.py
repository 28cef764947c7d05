"""Functions on ONNX models imported by scripts from ``polygraphy.backend.onnx.util``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import onnx

from trtops.backend.onnx import edit, walk
from trtops.backend.onnx.model import input_specs, tensor_spec
from trtops.backend.onnx.summary import summary
from trtops.metadata import TensorMetadata


def get_tensor_metadata(tensors: Iterable[onnx.ValueInfoProto]) -> TensorMetadata:
    """Return names, dtypes and shapes of declared tensors."""
    return TensorMetadata.of(map(tensor_spec, tensors))


def get_input_metadata(graph: onnx.GraphProto) -> TensorMetadata:
    """Return the metadata of a graph's inputs, without weights."""
    return TensorMetadata.of(input_specs(graph))


def get_output_metadata(graph: onnx.GraphProto) -> TensorMetadata:
    """Return the metadata of a graph's outputs."""
    return get_tensor_metadata(graph.output)


def get_num_nodes(model: onnx.ModelProto) -> int:
    """Return the number of nodes, including those of sub-graphs."""
    return sum(len(graph.node) for graph in walk.graphs(model.graph))


def all_tensor_names(model: onnx.ModelProto, include_inputs: bool | None = None) -> list[str]:
    """Return the names of the tensors produced by nodes, without those of Constant nodes."""
    return [*edit.tensor_names(model.graph), *(value.name for value in model.graph.input if include_inputs)]


def str_from_onnx(
    model: onnx.ModelProto,
    show_layers: bool | None = None,
    show_attrs: bool | None = None,
    show_weights: bool | None = None,
) -> str:
    """Return a model as text, as printed by ``trtops inspect model``."""
    shown = {"layers": show_layers, "attrs": show_attrs, "weights": show_weights}
    text = summary(model, [section for section, show in shown.items() if show])  # type: ignore[misc]
    return textwrap.dedent(text.partition("\n")[2])
