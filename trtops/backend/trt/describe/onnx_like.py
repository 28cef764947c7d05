"""Converts a TensorRT network to an ONNX model for viewers. The model does not run."""

import contextlib
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtops.backend.trt.describe.layers import attributes_of, inputs_of, layers_of, outputs_of
from trtops.backend.trt.library import dtypes


def draw(network: Any) -> onnx.ModelProto:
    """The network as an ONNX model: one node per layer, in a domain of its own, with the layer's plain attributes."""
    nodes = [_onnx_node(layer, index) for index, layer in enumerate(layers_of(network))]
    inputs, outputs = (list(map(_value_info, tensors)) for tensors in (inputs_of(network), outputs_of(network)))
    graph = helper.make_graph(nodes, network.name or "network", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("trt", 1)])


def _onnx_node(layer: Any, index: int) -> onnx.NodeProto:
    # Read first: `attributes_of` changes the layer's class, and with it `type`, for example to the activation's type.
    kind = layer.type.name
    return helper.make_node(
        kind,
        # A missing optional input is an empty name, as in ONNX.
        ["" if tensor is None else tensor.name for tensor in inputs_of(layer)],
        [tensor.name for tensor in outputs_of(layer) if tensor is not None],
        name=layer.name or f"layer_{index}",
        domain="trt",
        **_plain_attributes(layer),
    )


def _plain_attributes(layer: Any) -> dict[str, Any]:
    """A layer's attributes as ONNX values: numbers, text, tuples of numbers, arrays; enums by name."""
    attributes: dict[str, Any] = {}
    for name, value in attributes_of(layer).items():
        if isinstance(value, np.ndarray):
            attributes[name] = numpy_helper.from_array(value, name)
        elif isinstance(value, (bool, int, float, str)):
            attributes[name] = value
        elif hasattr(value, "name"):
            attributes[name] = value.name
        elif hasattr(value, "__len__"):
            with contextlib.suppress(ValueError):  # dimensions that are not set have a negative length
                attributes.update({name: list(value)} if list(value) else {})
    return attributes


def _value_info(tensor: Any) -> onnx.ValueInfoProto:
    dtype = dtypes.from_trt(tensor.dtype)
    element = helper.np_dtype_to_tensor_dtype(dtype.numpy())
    shape = [None if dim < 0 else dim for dim in tensor.shape]
    return helper.make_tensor_value_info(tensor.name, element, shape)
