"""Tiny ONNX models, built in code, each with a feed and, where possible, the expected outputs."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from trtops.backend.onnx import walk

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model, a feed for it, and what must come out."""

    proto: onnx.ModelProto
    feed: Arrays
    expected: Arrays | None = None  # the outputs by a plain numpy definition
    atol: float = 1e-5  # largest error of the expected outputs
    name: str = field(default="")

    def write(self, folder: Path, name: str | None = None) -> Path:
        """Save the model as ``<folder>/<name>.onnx``."""
        path = folder / f"{name or self.name}.onnx"
        onnx.save(self.proto, path)
        return path

    def fixed(self) -> "Case":
        """The same case with the feed's shapes in the model, which has no dynamic dimension then."""
        proto = onnx.ModelProto.FromString(self.proto.SerializeToString())
        sizes = {}
        for value in proto.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, self.feed[value.name].shape):
                sizes[dim.dim_param] = size
                dim.dim_value = size
        for value in proto.graph.output:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param and dim.dim_param in sizes:
                    dim.dim_value = sizes[dim.dim_param]
        return dataclasses.replace(self, proto=proto)

    def check(self, infer: Callable[[Arrays], Arrays]) -> None:
        """Feed ``infer`` (a runner's ``infer``, say) and compare what it returns with ``expected``."""
        outputs = infer(self.feed)
        assert list(outputs) == [value.name for value in self.proto.graph.output]
        for name, array in (self.expected or {}).items():
            np.testing.assert_allclose(outputs[name], array, rtol=1e-5, atol=self.atol)


def model(
    text: str, weights: Arrays | None = None, *, opset: int = 17, name: str = "g", ir_version: int = 8
) -> onnx.ModelProto:
    """Build a model from ONNX's own text syntax: ``(float[1,4] x) => (float[1,4] y) { y = Relu(x) }``."""
    domains = f'"" : {opset}, "com.microsoft" : 1, "custom" : 1' if "." in text else f'"" : {opset}'
    proto = _parse(f"<ir_version: {ir_version}, opset_import: [{domains}]>\n{name} {text}")
    for key, array in (weights or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), key))
    return proto


_NAME_OF_NODE = re.compile(r"(?<=[\s{])\[([^\[\]]+)\]\s+(?=([\w.]+)[\w.,\s]*=)")


def _parse(text: str) -> onnx.ModelProto:
    """Parse a model; old releases of onnx know no names of nodes, which are then set by output."""
    try:
        return parser.parse_model(text)
    except parser.ParseError:
        names = {output: name for name, output in _NAME_OF_NODE.findall(text)}
        if not names:
            raise
    proto = parser.parse_model(_NAME_OF_NODE.sub("", text))
    for graph in walk.graphs(proto.graph):
        for node in graph.node:
            node.name = names.get(node.output[0], "") if node.output else ""
    return proto


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Normally distributed float32, the same for the same arguments."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


@functools.cache
def newest_opset() -> int:
    """The newest operator set of ONNX whose quantization ONNX Runtime computes, too."""
    opset = onnx.defs.onnx_opset_version()
    text = "(float[2] x) => (float[2] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    while True:
        proto = model(text, {"s": np.float32(1), "z": np.int8(0)}, opset=opset, ir_version=10)
        import onnxruntime  # as the base of an installation, most tests need none

        try:
            onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        except Exception:  # ONNX Runtime has no class of its own for it
            opset -= 1
        else:
            return opset


def identity() -> Case:
    """``y = x``, opset 8, shape (1, 1, 2, 2): the model that Polygraphy's examples use."""
    proto = model(
        "(float[1,1,2,2] x) => (float[1,1,2,2] y) { y = Identity(x) }", opset=8, name="test_identity", ir_version=3
    )
    x = random(1, 1, 2, 2)
    return Case(proto, {"x": x}, {"y": x}, name="identity")


def dynamic_identity() -> Case:
    """``Y = X`` with shape (1, 2, ?, ?)."""
    proto = model(
        "(float[1,2,height,width] X) => (float[1,2,height,width] Y) { Y = Identity(X) }", opset=8, ir_version=3
    )
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in list(value.type.tensor_type.shape.dim)[2:]:
            dim.dim_value = -1
    x = random(1, 2, 5, 6)
    return Case(proto, {"X": x}, {"Y": x}, name="dynamic_identity")


def multi_output() -> Case:
    """Three outputs of different rank, dtype and name, one of them read inside the graph as well."""
    proto = model(
        """(float[N,4] x) => (float[N,4] relu, float[N] total, bool[N,4] positive) {
            relu = Relu(x)
            zero = Constant<value_float = 0.0>()
            positive = Greater(relu, zero)
            axes = Constant<value_ints = [1]>()
            total = ReduceSum<keepdims = 0>(relu, axes)
        }"""
    )
    # ONNX's text syntax has no names with a slash.
    proto.graph.output[1].name = proto.graph.node[-1].output[0] = "sum/0:1"
    x = random(3, 4)
    relu = np.maximum(x, 0)
    return Case(proto, {"x": x}, {"relu": relu, "sum/0:1": relu.sum(1), "positive": relu > 0}, name="multi_output")


def reshape() -> Case:
    """``y = reshape(data, shape)`` with the shape as an input (an int64 shape tensor)."""
    proto = model("(float[2,3,4] data, int64[2] shape) => (float[a,b] y) { y = Reshape(data, shape) }")
    data = random(2, 3, 4)
    return Case(proto, {"data": data, "shape": np.array([4, 6])}, {"y": data.reshape(4, 6)}, name="reshape")


def data_dependent() -> Case:
    """The output's shape depends on the input's values (NonZero)."""
    proto = model("(float[3,4] x) => (int64[2,n] where) { where = NonZero(x) }")
    x = np.where(random(3, 4) > 0, 1, 0).astype(np.float32)
    return Case(proto, {"x": x}, {"where": np.array(np.nonzero(x))}, name="data_dependent")


CONV_NODES = """
            [conv0] c0 = Conv<pads = [1,1,1,1]>(image, w0, b0)
            [bn0] n0 = BatchNormalization(c0, scale, bias, mean, var)
            [relu0] r0 = Relu(n0)
            [conv1] c1 = Conv<strides = [2,2]>(r0, w1)
            [relu1] r1 = Relu(c1)
            [pool] p = GlobalAveragePool(r1)
            [flatten] f = Flatten(p)
            [fc] logits = Gemm(f, w2, b2)
            [softmax] scores = Softmax<axis = 1>(logits)
        }"""


def conv_net() -> Case:
    """A small image classifier: two convolutions, batch normalization, pooling, a fully connected head, softmax."""
    weights = {
        "w0": random(8, 3, 3, 3, seed=1, scale=0.3),
        "b0": random(8, seed=2),
        "scale": np.abs(random(8, seed=3)) + 0.5,
        "bias": random(8, seed=4),
        "mean": random(8, seed=5),
        "var": np.abs(random(8, seed=6)) + 0.5,
        "w1": random(16, 8, 3, 3, seed=7, scale=0.2),
        "w2": random(16, 10, seed=8, scale=0.5),
        "b2": random(10, seed=9),
    }
    proto = model(f"(float[batch,3,8,8] image) => (float[batch,10] scores) {{ {CONV_NODES}", weights, name="conv_net")
    return Case(proto, {"image": random(2, 3, 8, 8, seed=10)}, name="conv_net")


def three_convolutions(batch: int, channels: int, size: int, scale: float | tuple[float, ...], name: str) -> Case:
    """Three convolutions with activations between them, which TensorRT builds without Myelin."""
    scales = scale if isinstance(scale, tuple) else (scale,) * 3
    weights = {
        f"w{i}": random(channels, channels, 3, 3, seed=i, scale=weight_scale) for i, weight_scale in enumerate(scales)
    }
    dims = f"{batch},{channels},{size},{size}"
    text = f"""(float[{dims}] x) => (float[{dims}] y) {{
        [conv0] a = Conv<pads = [1,1,1,1]>(x, w0)
        [relu0] b = Relu(a)
        [conv1] c = Conv<pads = [1,1,1,1]>(b, w1)
        [relu1] d = Relu(c)
        [conv2] y = Conv<pads = [1,1,1,1]>(d, w2)
    }}"""
    return Case(model(text, weights, name=name), {"x": random(batch, channels, size, size, seed=9)}, name=name)


def two_convolutions(seed: int, batch: int = 1, scales: tuple[float, float] = (0.08, 0.08)) -> Case:
    """Two convolutions: nothing of it is Myelin's, whose timings 8.6 does not read back from a cache."""
    weights = {f"w{i}": random(32, 32, 3, 3, seed=2 * seed + i, scale=scale) for i, scale in enumerate(scales)}
    text = f"""(float[{batch},32,14,14] x) => (float[{batch},32,14,14] y) {{
        [conv0] a = Conv<pads = [1,1,1,1]>(x, w0)
        [relu0] b = Relu(a)
        [conv1] y = Conv<pads = [1,1,1,1]>(b, w1)
    }}"""
    name = f"convolutions_{seed}"
    return Case(model(text, weights, name=name), {"x": random(batch, 32, 14, 14, seed=seed + 100)}, name=name)


def transformer() -> Case:
    """One transformer block with two heads, layer normalization, and GELU in its exact form (with Erf)."""
    width, inner = 16, 32
    weights: dict[str, Any] = {
        f"w_{n}": random(width, width, seed=i, scale=0.25) for i, n in enumerate(("q", "k", "v", "o"))
    }
    weights |= {
        "gain": np.ones(width, np.float32),
        "shift": np.zeros(width, np.float32),
        "w_in": random(width, inner, seed=5, scale=0.25),
        "b_in": random(inner, seed=6, scale=0.1),
        "w_out": random(inner, width, seed=7, scale=0.25),
        "split": np.array([0, 0, 2, 8]),
        "join": np.array([0, 0, 16]),
        "depth": np.float32(np.sqrt(8)),
        "sqrt2": np.float32(np.sqrt(2)),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    heads = "\n".join(
        f"[{n}] {n}0 = MatMul(h, w_{n})\n {n}1 = Reshape({n}0, split)\n {n}2 = Transpose<perm = {perm}>({n}1)"
        for n, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
    )
    proto = model(
        f"""(float[batch,seq,{width}] x) => (float[batch,seq,{width}] y) {{
            [norm0] h = LayerNormalization<axis = -1>(x, gain, shift)
            {heads}
            [scores] s0 = MatMul(q2, k2)
            s1 = Div(s0, depth)
            [softmax] s2 = Softmax<axis = -1>(s1)
            a0 = MatMul(s2, v2)
            a1 = Transpose<perm = [0,2,1,3]>(a0)
            a2 = Reshape(a1, join)
            [proj] a3 = MatMul(a2, w_o)
            r = Add(x, a3)
            [norm1] m0 = LayerNormalization<axis = -1>(r, gain, shift)
            [mlp_in] m1 = MatMul(m0, w_in)
            m2 = Add(m1, b_in)
            e0 = Div(m2, sqrt2)
            [erf] e1 = Erf(e0)
            e2 = Add(e1, one)
            e3 = Mul(m2, e2)
            e4 = Mul(e3, half)
            [mlp_out] m3 = MatMul(e4, w_out)
            y = Add(r, m3)
        }}""",
        weights,
        name="transformer",
    )
    return Case(proto, {"x": random(2, 5, width, seed=8)}, name="transformer")


def qdq_net() -> Case:
    """A matrix product whose input and weight pass through QuantizeLinear and DequantizeLinear."""
    weights = {
        "s_x": np.float32(0.02),
        "s_w": np.float32(0.01),
        "zero": np.int8(0),
        "w_q": np.random.default_rng(1).integers(-127, 128, (8, 4)).astype(np.int8),
    }
    proto = model(
        """(float[N,8] x) => (float[N,4] y) {
            x_q = QuantizeLinear(x, s_x, zero)
            x_d = DequantizeLinear(x_q, s_x, zero)
            w_d = DequantizeLinear(w_q, s_w, zero)
            y = MatMul(x_d, w_d)
        }""",
        weights,
    )
    x = random(3, 8)
    rounded = np.clip(np.rint(x / np.float32(0.02)), -128, 127) * np.float32(0.02)
    y = rounded @ (weights["w_q"].astype(np.float32) * np.float32(0.01))
    return Case(proto, {"x": x}, {"y": y}, atol=1e-4, name="qdq_net")


def no_kernel() -> Case:
    """Holds an op, ``custom.Frobnicate``, that no back end has."""
    proto = model("(float[4] x) => (float[4] y) { t = Relu(x)\n [frob] u = custom.Frobnicate(t)\n y = Relu(u) }")
    return Case(proto, {"x": random(4)}, name="no_kernel")


def branch() -> Case:
    """An If whose bodies read a tensor and a weight of the graph around them."""
    proto = model(
        """(float[2,3] x, bool flag) => (float[2,3] y) {
            t = Mul(x, w)
            [choose] b = If(flag) <
                then_branch = yes () => (float[2,3] p) { p = Add(t, w) },
                else_branch = no () => (float[2,3] q) { q = Sub(t, w) }
            >
            y = Abs(b)
        }""",
        {"w": random(2, 3, seed=1)},
    )
    x, w = random(2, 3), random(2, 3, seed=1)
    return Case(proto, {"x": x, "flag": np.array(True)}, {"y": np.abs(x * w + w)}, name="branch")


def loop() -> Case:
    """A Loop that adds a weight of the graph around it three times, and collects each step."""
    proto = model(
        """(float[4] x) => (float[4] last, float[3,4] steps) {
            trips = Constant<value_int = 3>()
            go = Constant<value = bool {1}>()
            last, steps = Loop(trips, go, x) <
                body = step (int64 i, bool c, float[4] s) => (bool c_out, float[4] s_out, float[4] each) {
                    c_out = Identity(c)
                    s_out = Add(s, w)
                    each = Identity(s_out)
                }
            >
        }""",
        {"w": random(4, seed=1)},
    )
    x, w = random(4), random(4, seed=1)
    return Case(proto, {"x": x}, {"last": x + 3 * w, "steps": np.stack([x + w, x + 2 * w, x + 3 * w])}, name="loop")


def foldable() -> Case:
    """Shape, Gather, Concat and Reshape over a static input, and arithmetic between constants."""
    proto = model(
        """(float[2,3,4] x) => (float[2,12] y) {
            s = Shape(x)
            first = Gather(s, zero)
            axes = Constant<value_ints = [0]>()
            one = Unsqueeze(first, axes)
            target = Concat<axis = 0>(one, rest)
            flat = Reshape(x, target)
            double = Add(k, k)
            y = Mul(flat, double)
        }""",
        {"zero": np.array(0), "rest": np.array([-1]), "k": np.float32(1.5)},
    )
    x = random(2, 3, 4)
    return Case(proto, {"x": x}, {"y": x.reshape(2, 12) * 3}, name="foldable")


def overflowing() -> Case:
    """Three convolutions so large that FP16 makes them many times as fast; between the last two FP16 is overrun.

    The second one's outputs are in the hundreds of thousands, the third one's weights bring them back.
    """
    return three_convolutions(16, 256, 14, (0.02, 2e3, 2e-7), "overflowing")


ALL: tuple[Callable[[], Case], ...] = (
    identity, dynamic_identity, multi_output, reshape, data_dependent, conv_net, transformer, qdq_net, branch, loop,
    foldable,
)  # fmt: skip
"""Every model here that ONNX Runtime runs."""


def write_external(case: Case, folder: Path, *, location: str = "weights.bin", threshold: int = 100) -> Path:
    """Save a case's model as ``<folder>/<name>.onnx``, with its weights of ``threshold`` bytes or more in one file."""
    # ONNX Runtime does not load a model whose target shapes lie outside the file, hence the threshold.
    folder.mkdir(parents=True, exist_ok=True)
    proto = onnx.ModelProto()
    proto.CopyFrom(case.proto)
    path = folder / f"{case.name}.onnx"
    onnx.save(proto, path, save_as_external_data=True, location=location, size_threshold=threshold)
    return path


def off_by(proto: onnx.ModelProto, amount: float, *names: str) -> onnx.ModelProto:
    """The model with something added to what the nodes of these names compute."""
    wrong = onnx.ModelProto.FromString(proto.SerializeToString())
    for node in [node for node in wrong.graph.node if node.name in names]:
        result, right = node.output[0], f"{node.output[0]}_right"
        node.output[0] = right
        wrong.graph.initializer.append(numpy_helper.from_array(np.float32(amount), f"{result}_error"))
        wrong.graph.node.append(onnx.helper.make_node("Add", [right, f"{result}_error"], [result]))
    return wrong


def run(proto: onnx.ModelProto, feed: Arrays) -> Arrays:
    """The outputs of a model in ONNX Runtime, by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed))))


def without(cache: Any, name: str) -> Any:
    """A calibration cache without the range of one tensor."""
    return dataclasses.replace(cache, ranges=tuple(entry for entry in cache.ranges if entry.name != name))
