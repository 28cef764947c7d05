"""A ResNet-50 as its exporter leaves it, batch normalization folded, with weights drawn from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, and channels inside them


class _Graph:
    """Nodes and weights as they come."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int, scale: float) -> str:
        name = f"w{len(self.weights)}"
        array = self.rng.standard_normal(shape, np.float32) * np.float32(scale)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(self, x: str, before: int, after: int, size: int, stride: int = 1, gain: float = 1.0) -> str:
        weight = self.weight(after, before, size, size, scale=gain * (2 / (before * size * size)) ** 0.5)
        bias = self.weight(after, scale=0.05)
        pad = size // 2
        return self.node("Conv", x, weight, bias, strides=[stride] * 2, pads=[pad] * 4, kernel_shape=[size] * 2)

    def block(self, x: str, before: int, width: int, stride: int) -> str:
        y = self.node("Relu", self.conv(x, before, width, 1))
        y = self.node("Relu", self.conv(y, width, width, 3, stride))
        y = self.conv(y, width, 4 * width, 1, gain=0.3)
        if before != 4 * width or stride > 1:
            x = self.conv(x, before, 4 * width, 1, stride, gain=0.7)
        return self.node("Relu", self.node("Add", y, x))


def write_resnet50(path: Path, seed: int = 0) -> Path:
    """Write the model; 102 MB, input ``image`` of (batch, 3, 224, 224), output ``logits`` of 1,000 classes."""
    graph = _Graph(seed)
    x = graph.node("Relu", graph.conv("image", 3, 64, 7, 2))
    x = graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    before = 64
    for stage, (blocks, width) in enumerate(_STAGES):
        for number in range(blocks):
            x = graph.block(x, before, width, 2 if stage and not number else 1)
            before = 4 * width
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    head = (graph.weight(1000, before, scale=0.02), graph.weight(1000, scale=0.02))
    graph.nodes.append(helper.make_node("Gemm", [x, *head], ["logits"], name="head", transB=1))
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "resnet50",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 224, 224])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1000])],
            graph.weights,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    onnx.save(proto, path)
    return path
