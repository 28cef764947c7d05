"""A TensorRT network as an ONNX model, for viewers of ONNX. Such a model does not run."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from trtops.backend.trt.describe.layers import layers_of, specialize
from trtops.backend.trt.library import dtypes

_ATTRIBUTES = (
    "axis",
    "axes",
    "op",
    "stride_nd",
    "padding_nd",
    "dilation_nd",
    "kernel_size_nd",
    "num_groups",
    "keep_dims",
)


def draw(network: Any) -> onnx.ModelProto:
    """The network as an ONNX model: one node per layer, in a domain of its own, with the layer's plain attributes."""
    nodes = [_onnx_node(layer, index) for index, layer in enumerate(layers_of(network))]
    inputs = [_value_info(network.get_input(index)) for index in range(network.num_inputs)]
    outputs = [_value_info(network.get_output(index)) for index in range(network.num_outputs)]
    graph = helper.make_graph(nodes, network.name or "network", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("trt", 1)])


def _onnx_node(layer: Any, index: int) -> onnx.NodeProto:
    # An absent optional input keeps its place as an empty name, as in ONNX itself.
    inputs = [layer.get_input(i) for i in range(layer.num_inputs)]
    outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
    return helper.make_node(
        layer.type.name.title().replace("_", ""),
        ["" if tensor is None else tensor.name for tensor in inputs],
        [tensor.name for tensor in outputs if tensor is not None],
        name=layer.name or f"layer_{index}",
        domain="trt",
        **_plain_attributes(layer),
    )


def _plain_attributes(layer: Any) -> dict[str, Any]:
    """A layer's attributes that ONNX can hold: numbers, text and tuples of numbers; enums by name."""
    found: dict[str, Any] = {}
    specialize(layer)
    for name in _ATTRIBUTES:
        value: Any = getattr(layer, name, None)
        if isinstance(value, (bool, int, float, str)):
            found[name] = value
        elif hasattr(value, "name"):
            found[name] = value.name
        elif hasattr(value, "__len__") and len(value):
            found[name] = list(value)
    return found


def _value_info(tensor: Any) -> onnx.ValueInfoProto:
    dtype = dtypes.from_trt(tensor.dtype)
    element = helper.np_dtype_to_tensor_dtype(dtype.numpy())
    shape = [None if dim < 0 else dim for dim in tensor.shape]
    return helper.make_tensor_value_info(tensor.name, element, shape)
