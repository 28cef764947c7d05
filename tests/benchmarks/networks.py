"""Networks of the benchmarks, with weights drawn from a seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """Collects nodes and weights."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, gain: float = 1.0) -> str:
        scale = gain / max(int(np.prod(shape[1:])), 1) ** 0.5
        return self.constant(self.random.standard_normal(shape, np.float32) * np.float32(scale))

    def constant(self, value: object) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name + "_out"], name=name, **attributes))
        return name + "_out"

    def conv(self, x: str, before: int, after: int, size: int, stride: int = 1, gain: float = 1.4) -> str:
        weights = (self.weight(after, before, size, size, gain=gain), self.weight(after, gain=0.05))
        return self.op("Conv", x, *weights, strides=[stride] * 2, pads=[size // 2] * 4, kernel_shape=[size] * 2)

    def model(self, inputs: Mapping[str, Sequence[int | str]], output: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "bench",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def resnet50() -> onnx.ModelProto:
    """ResNet-50 with folded batch normalization: ``image`` of (batch, 3, 224, 224) to 1,000 classes, 102 MB."""
    b = Graph()
    x = b.op("Relu", b.conv("image", 3, 64, 7, 2))
    x, before = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(blocks):
            stride = 2 if width > 64 and number == 0 else 1
            y = b.op("Relu", b.conv(x, before, width, 1))
            y = b.op("Relu", b.conv(y, width, width, 3, stride))
            y = b.conv(y, width, 4 * width, 1, gain=0.4)
            if number == 0:
                x = b.conv(x, before, 4 * width, 1, stride, gain=1.0)
            x, before = b.op("Relu", b.op("Add", y, x)), 4 * width
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    return b.model({"image": ("batch", 3, 224, 224)}, b.op("Gemm", x, b.weight(1000, before), b.weight(1000), transB=1))


def write_resnet50(path: Path) -> Path:
    onnx.save(resnet50(), path)
    return path


def densenet() -> onnx.ModelProto:
    """DenseNet-121: 120 convolutions in four dense blocks, each behind BatchNormalization and Relu."""
    b, channels, growth = Graph(), 64, 32

    def convolution(x: str, before: int, after: int, kernel: int, **attributes: object) -> str:
        scale, shift, mean = b.weight(before), b.weight(before), b.weight(before)
        variance = b.constant(np.abs(b.random.standard_normal(before, np.float32)) + 1)
        x = b.op("Relu", b.op("BatchNormalization", x, scale, shift, mean, variance))
        return b.op("Conv", x, b.weight(after, before, kernel, kernel), **attributes)

    x = b.op("Conv", "x", b.weight(64, 3, 7, 7), pads=[3, 3, 3, 3], strides=[2, 2])
    x = b.op("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    for layers in (6, 12, 24, 16):
        for _ in range(layers):
            y = convolution(convolution(x, channels, 4 * growth, 1), 4 * growth, growth, 3, pads=[1, 1, 1, 1])
            x, channels = b.op("Concat", x, y, axis=1), channels + growth
        if layers != 16:
            x, channels = convolution(x, channels, channels // 2, 1), channels // 2
            x = b.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Flatten", b.op("GlobalAveragePool", b.op("Relu", x)))
    return b.model({"x": (1, 3, 224, 224)}, b.op("Gemm", x, b.weight(channels, 1000)))


def perceptron(width: int = 512) -> onnx.ModelProto:
    """Three hidden layers: ``x`` of (batch, 256) to 10 classes."""
    b, x, before = Graph(3), "x", 256
    for _ in range(3):
        x = b.op("Relu", b.op("Gemm", x, b.weight(width, before, gain=1.4), b.weight(width, gain=0.1), transB=1))
        before = width
    return b.model({"x": ("batch", 256)}, b.op("Gemm", x, b.weight(10, before), b.weight(10), transB=1))


def small_resnet() -> onnx.ModelProto:
    """Three residual blocks: ``image`` of (batch, 3, 32, 32) to 10 classes."""
    b = Graph(5)
    x, before = b.op("Relu", b.conv("image", 3, 32, 3)), 32
    for width, stride in ((32, 1), (64, 2), (128, 2)):
        y = b.op("Relu", b.conv(x, before, width, 3, stride))
        y = b.conv(y, width, width, 3, gain=0.5)
        if stride > 1:
            x = b.conv(x, before, width, 1, stride, gain=1.0)
        x, before = b.op("Relu", b.op("Add", y, x)), width
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    return b.model({"image": ("batch", 3, 32, 32)}, b.op("Gemm", x, b.weight(10, before), b.weight(10), transB=1))


def shape_chain(nodes: int) -> onnx.ModelProto:
    """A Reshape behind a chain of ``nodes`` nodes that compute its shape from that of the input, which is static."""
    b = Graph()
    shape, unit, axes = b.op("Shape", "x"), b.constant(np.int64(1)), b.constant(np.array([0], np.int64))
    while len(b.nodes) < nodes - 1:
        number = len(b.nodes) % 4
        if number < 2:
            shape = b.op("Mul" if number else "Div", shape, unit)
        else:
            shape = b.op("Unsqueeze" if number == 2 else "Squeeze", shape, axes)
    shape = b.op("Reshape", shape, b.constant(np.array([-1], np.int64)))
    return b.model({"x": (4, 8)}, b.op("Reshape", "x", shape))


def exported_transformer(
    nodes: int, *, width: int = 32, dynamic: bool = True, flattened: bool = False
) -> onnx.ModelProto:
    """Attention and feed-forward blocks as PyTorch exports them: each Reshape behind a chain of Shape and Gather.

    With ``flattened``, a head takes each sample's rows as one, whose length only symbolic shape inference computes.
    """
    b, x, heads = Graph(), "x", 4

    def size_of(x: str, axis: int) -> str:
        index = b.op("Constant", value_int=axis)
        return b.op("Unsqueeze", b.op("Gather", b.op("Shape", x), index, axis=0), b.op("Constant", value_ints=[0]))

    def reshaped(x: str, *rest: int) -> str:
        shape = [size_of(x, 0), size_of(x, 1), *(b.op("Constant", value_ints=[size]) for size in rest)]
        return b.op("Reshape", x, b.op("Concat", *shape, axis=0))

    def projected(x: str) -> str:
        dense = b.op("Add", b.op("MatMul", x, b.weight(width, width)), b.weight(width))
        return b.op("Transpose", reshaped(dense, heads, -1), perm=[0, 2, 1, 3])

    while len(b.nodes) < nodes - 60:
        q, k, v = projected(x), projected(x), projected(x)
        scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
        scale = b.op("Sqrt", b.op("Cast", b.op("Constant", value_int=width // heads), to=TensorProto.FLOAT))
        mixed = b.op("MatMul", b.op("Softmax", b.op("Div", scores, scale), axis=-1), v)
        mixed = reshaped(b.op("Transpose", mixed, perm=[0, 2, 1, 3]), width)
        x = b.op("Add", x, b.op("MatMul", mixed, b.weight(width, width)))
        y = b.op("MatMul", x, b.weight(width, 2 * width))
        half = b.op("Constant", value_float=0.5)
        y = b.op("Mul", b.op("Mul", y, half), b.op("Add", b.op("Erf", y), b.op("Constant", value_float=1.0)))
        x = b.op("Add", x, b.op("MatMul", y, b.weight(2 * width, width)))
    if flattened:
        x = b.op("Reshape", x, b.op("Concat", size_of(x, 0), b.op("Constant", value_ints=[-1]), axis=0))
        x = b.op("Reshape", x, b.op("Concat", size_of(x, 0), size_of(x, 1), axis=0))
    batch, length = "batch" if dynamic else 1, "sequence" if dynamic and not flattened else 16
    return b.model({"x": (batch, length, width)}, x)
