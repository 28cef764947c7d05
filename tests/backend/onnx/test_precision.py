"""FP16 and BF16 rewriting: valid models with the same interface and nearly the same results."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from tests import models
from tests.models import run
from trtops import errors
from trtops.backend.onnx import shapes, walk
from trtops.backend.onnx.emulation import emulate_low_precision, round_to_tf32, watch_peaks
from trtops.backend.onnx.model import Model, model_digest
from trtops.backend.onnx.precision import beyond_range, convert_to_fp16, lower_precision
from trtops.calibration.cache import CalibrationCache, TensorRange
from trtops.metadata import DataType


@pytest.mark.parametrize("keep_io", [True, False])
@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
def test_fp16_models_are_valid_and_accurate(make: Callable[[], models.Case], keep_io: bool) -> None:
    case = make()
    before = model_digest(case.proto)

    half = convert_to_fp16(case.proto, keep_io=keep_io)

    assert model_digest(case.proto) == before
    onnx.checker.check_model(half, full_check=True)
    dtype = np.float32 if keep_io else np.float16
    feed = {n: a.astype(dtype) if a.dtype == np.float32 else a for n, a in case.feed.items()}
    golden, outputs = run(case.proto, case.feed), run(half, feed)
    assert list(golden) == list(outputs)
    for name, array in golden.items():
        assert outputs[name].dtype == (dtype if array.dtype == np.float32 else array.dtype)
        np.testing.assert_allclose(outputs[name].astype(np.float64), array, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "make", [models.conv_net, models.transformer, models.branch, models.loop], ids=lambda f: f.__name__
)
def test_bf16_models_are_valid(make: Callable[[], models.Case]) -> None:
    case = make()

    lowered = lower_precision(case.proto, "bf16").model

    onnx.checker.check_model(lowered, full_check=True)
    info, before = Model.from_proto(lowered).info, Model.from_proto(case.proto).info
    assert (info.inputs, info.outputs) == (before.inputs, before.outputs)
    assert any(t.data_type == TensorProto.BFLOAT16 for t in lowered.graph.initializer)


def test_products_round_their_inputs_to_tf32() -> None:
    text = "(float[8,16] x) => (float[8,4] y, float[8,16] z) { y = Gemm(x, w, b) z = Add(x, x) }"
    weights = {"w": models.random(16, 4, seed=1), "b": models.random(4, seed=2) * np.float32(1e-4)}
    case = models.Case(models.model(text, weights), {"x": models.random(8, 16, seed=3) * np.float32(1e6)})

    def tf32(array: np.ndarray) -> np.ndarray:  # to nearest, ties to even, in the 13 bits that TF32 lacks
        bits = array.view(np.uint32)
        return ((bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint32(0x1FFF)).view(np.float32)

    outputs, x = run(round_to_tf32(case.proto), case.feed), case.feed["x"]

    expected = tf32(x).astype(np.float64) @ tf32(weights["w"]).astype(np.float64) + weights["b"]
    np.testing.assert_allclose(outputs["y"], expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert np.abs(expected - (x.astype(np.float64) @ weights["w"] + weights["b"])).max() > 1e-4 * np.abs(expected).max()
    np.testing.assert_array_equal(outputs["z"], x + x)  # no product
    nested = round_to_tf32(models.loop().proto)
    onnx.checker.check_model(nested, full_check=True)


def test_casts_are_only_at_inputs_and_outputs() -> None:
    half = lower_precision(models.transformer().proto, "fp16")

    assert half.fp32_nodes == [] and len(half.lowered) == 28
    assert [n.op_type for n in half.model.graph.node if "Cast" in n.op_type] == ["Cast", "Cast"]
    assert {t.data_type for t in half.model.graph.initializer} == {TensorProto.FLOAT16, TensorProto.INT64}
    no_io = convert_to_fp16(models.transformer().proto, keep_io=False)
    assert all(node.op_type != "Cast" for node in no_io.graph.node)
    names = convert_to_fp16(models.conv_net().proto)
    assert {"c0", "n0", "r0", "logits"} <= {name for node in names.graph.node for name in node.output}
    assert {t.name for t in names.graph.initializer} == {t.name for t in models.conv_net().proto.graph.initializer}


@pytest.mark.parametrize("exclude", [["softmax"], ["Softmax"], ["soft*"], ["scores"], ["sco*"]])
def test_excluded_nodes_stay_in_fp32(exclude: list[str]) -> None:
    half = lower_precision(models.conv_net().proto, "fp16", exclude=exclude)

    assert half.fp32_nodes == ["softmax"]
    softmax = next(n for n in half.model.graph.node if n.op_type == "Softmax")
    assert softmax.input[0] == "logits_float32" and softmax.output[0] == "scores"
    with pytest.raises(errors.ConfigError, match="sotfmax"):
        convert_to_fp16(models.conv_net().proto, exclude=["sotfmax"])
    case = models.transformer()
    same = lower_precision(case.proto, "fp16", exclude=["*"])
    assert same.lowered == []
    np.testing.assert_array_equal(run(same.model, case.feed)["y"], run(case.proto, case.feed)["y"])


NORM = (
    "(float[2,8] x) => (float[2,8] y, float[2,1] m) { y, n = LayerNormalization<axis = -1>(x, g, b) m = Identity(n) }"
)
SEQUENCES = """(float[4] x) => (float[8] y) {
    t = Relu(x)
    s = SequenceConstruct(t, x)
    u = SequenceAt(s, zero)
    v = Relu(u)
    y = Concat<axis = 0>(v, t)
}"""
RANDOM = "(float[4] x) => (float[4] y) { t = Relu(x) r = RandomUniformLike<low = 0.0, high = 0.0>(t) y = Add(t, r) }"
MIXED: dict[str, tuple[str, models.Arrays, tuple[int, ...]]] = {
    "inputs in FP32 only": (
        '(float[1,1,4,4] x) => (float[1,1,8,8] y) { y = Resize<mode = "linear">(x, roi, scales) }',
        {"scales": np.array([1, 1, 2, 2], np.float32), "roi": np.zeros(0, np.float32)},
        (1, 1, 4, 4),
    ),
    "outputs of another type": (NORM, {"g": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}, (2, 8)),
    "sequences": (SEQUENCES, {"zero": np.array(0)}, (4,)),
    "random values": (RANDOM, {}, (4,)),
    "indices": ("(float[8] x) => (float[3] v, int64[3] i) { v, i = TopK(x, k) }", {"k": np.array([3])}, (8,)),
}


@pytest.mark.parametrize("label", MIXED)
def test_operators_with_mixed_types_stay_valid(label: str) -> None:
    text, weights, shape = MIXED[label]
    proto = models.model(text, weights)

    half = convert_to_fp16(proto)

    onnx.checker.check_model(half, full_check=True)
    x = models.random(*shape)
    for name, array in run(proto, {"x": x}).items():
        np.testing.assert_allclose(run(half, {"x": x})[name], array, atol=1e-2)
    assert all(t.data_type == TensorProto.FLOAT for t in half.graph.initializer if t.name == "scales")


# Lengths, positions and masks in floating point, with numbers that 16 bit does not hold; and the nodes to keep.
INDEX_ARITHMETIC: dict[str, tuple[str, tuple[str, ...]]] = {
    "length of a convolution": (
        """(float[1,n] x, int64[1] size) => (int64[1] y, float[1,n] z) {
        f = Cast<to = 1>(size) [a] s = Sub(f, three) [b] d = Div(s, two) [c] r = Floor(d) [d] t = Add(r, one)
        y = Cast<to = 7>(t) z = Relu(x) }""",
        ("a", "b", "c", "d"),
    ),
    "mask of positions": (
        """(float[1,n] x, int64[1] size) => (bool[n] y, float[n] z) {
        shape = Shape(x) length = Gather<axis = 0>(shape, i1) p = Range(i0, length, i1) q = Cast<to = 1>(p)
        f = Cast<to = 1>(size) y = Less(q, f) m = Cast<to = 1>(y) [a] w = Sub(m, one) [b] z = Mul(w, big) }""",
        (),
    ),
    "sum of durations": (
        """(float[1,n] x, int64[1] size) => (int64[1] y) {
        [a] d = Ceil(x) [b] s = ReduceSum<keepdims = 0>(d) [c] t = Reshape(s, i1s) y = Cast<to = 7>(t) }""",
        ("a", "b", "c"),
    ),
    "sine of positions": (
        """(float[1,n] x, int64[1] size) => (float[1] y) {
        f = Cast<to = 1>(size) [a] a = Mul(f, two) [b] y = Sin(a) }""",
        ("a", "b"),
    ),
    "body of a branch": (
        """(float[1,n] x, int64[1] size) => (int64[1] y) {
        f = Cast<to = 1>(size) yes = Less(size, i1s)
        [if] h = If(yes)<then_branch = g1 () => (float[1] p) { p = Add(f, one) },
            else_branch = g2 () => (float[1] q) { q = Sub(f, one) }>
        [a] t = Add(h, one) y = Cast<to = 7>(t) }""",
        ("p", "q", "a"),
    ),
}


@pytest.mark.parametrize("to", ["fp16", "bf16"])
@pytest.mark.parametrize("label", INDEX_ARITHMETIC)
def test_index_arithmetic_stays_exact(label: str, to: Literal["fp16", "bf16"]) -> None:
    text, exact_nodes = INDEX_ARITHMETIC[label]
    numbers = {"three": [3], "two": [2], "one": [1], "big": [1e4]}
    weights = {name: np.array(value, np.float32) for name, value in numbers.items() if f"{name})" in text}
    integers = {"i0": np.array(0), "i1": np.array(1), "i1s": np.array([1])}
    weights |= {name: value for name, value in integers.items() if name in text}
    proto = models.model(text, weights)
    feed = {"x": models.random(1, 5003), "size": np.array([4999])}

    low = lower_precision(proto, to)

    assert set(exact_nodes) <= set(low.fp32_nodes)
    assert to == "bf16" or low.indices == list(exact_nodes)  # BF16 has no sine
    emulate_low_precision(low.model)
    expected, actual = run(proto, feed), run(low.model, feed)
    for name, array in expected.items():
        if array.dtype != np.float32 or label.startswith("sine"):
            np.testing.assert_array_equal(actual[name], array)


@pytest.mark.parametrize(
    ("mask", "values", "expected"),
    [
        (1.0, {"a": 65504.0, "b": 2.0**-24}, {}),
        (1.0, {"a": 1e5}, {"sq": ("a", 1e5), "masked": ("a", 1e5)}),
        (1.0, {"b": 1e-8, "x": 0.0}, {"masked": ("b", 1e-8), "out": ("b", 1e-8)}),
        (1.0, {"b": 1e9}, {"masked": ("b", 1e9), "out": ("b", 1e9)}),
        (-1e9, {"b": 1.1e9}, {}),  # the mask
        (-1e9, {"a": 1e6, "b": 1.1e9}, {"sq": ("a", 1e6), "masked": ("a", 1e6)}),
    ],
)
def test_measured_values_beyond_fp16_are_found(mask: float, values: dict[str, float], expected: Any) -> None:
    text = "(float[2] x) => (float[2] y) { [sq] a = Mul(x, x) [masked] b = Add(a, mask) [out] y = Neg(b) }"
    proto = models.model(text, {"mask": np.full(2, mask, np.float32)})
    ranges = [TensorRange(name=n, amax=amax / 2, low=-amax, high=0.0) for n, amax in values.items()]  # clipped
    cache = CalibrationCache(algorithm="entropy", ranges=(*ranges, TensorRange(name="mask", amax=1e9)))

    assert beyond_range(proto, cache, "fp16") == expected
    assert beyond_range(proto, cache, "bf16") == {}


def test_values_without_consequences_are_lowered() -> None:
    image = "(uint8[1,3,4,4] x) => (float[1,3,4,4] y) { f = Cast<to = 1>(x) [a] s = Sub(f, c) [b] y = Mul(s, c) }"
    scores = "(float[4] x) => (int64[4] y) { [a] s = Mul(x, c) [b] t = Add(s, c) y = Cast<to = 7>(t) }"
    for text in (image, scores):
        low = lower_precision(models.model(text, {"c": np.array([0.5], np.float32)}), "fp16")
        assert (low.indices, low.lowered[:2]) == ([], ["a", "b"])


def test_weights_are_stored_in_the_precisions_used() -> None:
    text = "(float[4] x) => (float[4] y) { [a] t = Mul(x, w)\n [b] y = Add(t, w) }"
    proto = models.model(text, {"w": models.random(4)})
    half = convert_to_fp16(proto, exclude=["b"])
    assert {t.name: t.data_type for t in half.graph.initializer} == {"w": 1, "w_float16": 10}
    x = models.random(4, seed=2)
    np.testing.assert_allclose(run(half, {"x": x})["y"], run(proto, {"x": x})["y"], atol=1e-2)

    case = models.conv_net()
    case.proto.ir_version = 3
    for tensor in case.proto.graph.initializer:
        case.proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, list(tensor.dims)))
    half = convert_to_fp16(case.proto)
    onnx.checker.check_model(half, full_check=True)
    assert [value.name for value in half.graph.input] == ["image"]
    np.testing.assert_allclose(run(half, case.feed)["scores"], run(case.proto, case.feed)["scores"], atol=1e-2)


OUT_OF_RANGE: list[tuple[str, Any, dict[str, object], list[float] | None]] = [
    ("Div", [1e6, 1.0], {"too_large": ["node"], "fp32_nodes": ["node"]}, None),
    ("Add", [-1e9, 0], {"lowered": ["node"]}, [-65504, 0]),
    ("Add", [float(np.finfo(np.float32).min), 0], {"lowered": ["node"]}, [-65504, 0]),
    ("Add", [np.inf, np.nan], {"lowered": ["node"]}, [np.inf, np.nan]),
    ("Add", 1e-12, {"flushed": {}}, [float(np.float16(6e-8))]),
    ("Mul", [1e-9, 1], {"flushed": {"c": 1}}, [0, 1]),
]


@pytest.mark.parametrize(("op", "value", "report", "stored"), OUT_OF_RANGE)
def test_values_out_of_range_are_handled(
    op: str, value: Any, report: dict[str, object], stored: list[float] | None, caplog: pytest.LogCaptureFixture
) -> None:
    text = f"(float[2] x) => (float[2] y) {{ [node] y = {op}(x, c) }}"
    proto = models.model(text, {"c": np.asarray(value, np.float32)})

    half = lower_precision(proto, "fp16")

    assert {name: getattr(half, name) for name in report} == report
    if stored is not None:
        array = numpy_helper.to_array(half.model.graph.initializer[0])
        np.testing.assert_array_equal(array.reshape(-1), np.array(stored, np.float16))
    else:
        np.testing.assert_allclose(run(half.model, {"x": np.array([1e6, 2], np.float32)})["y"], [1, 2])
        convert_to_fp16(proto)
        assert "exceed the 16-bit range: node" in caplog.text
    wide = lower_precision(models.model(text, {"c": np.array([1e30, 1e-30], np.float32)}), "bf16")
    assert (wide.too_large, wide.flushed) == ([], {})


UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Identity", "Floor")
BINARY = ("Add", "Sub", "Mul", "Max")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=9
    ),
    st.sets(st.integers(0, 8)),
    st.booleans(),
    st.sampled_from(["fp16", "bf16"]),
)
def test_any_exclusion_gives_a_valid_model(
    steps: list[tuple[str, int, int]], excluded: set[int], keep_io: bool, to: Literal["fp16", "bf16"]
) -> None:
    tensors = ["x", "w"]
    lines = []
    for i, (op, a, b) in enumerate(steps):
        args = [tensors[a % len(tensors)], *([tensors[b % len(tensors)]] if op in BINARY else [])]
        lines.append(f"[n{i}] t{i} = {op}({', '.join(args)})")
        tensors.append(f"t{i}")
    outputs = [f"t{i}" for i in range(len(steps)) if i % 2 == 0 or i == len(steps) - 1]
    declared = ", ".join(f"float[3] {name}" for name in outputs)
    proto = models.model(f"(float[3] x) => ({declared}) {{ {chr(10).join(lines)} }}", {"w": models.random(3, seed=1)})

    lowered = lower_precision(proto, to, keep_io=keep_io, exclude=[f"n{i}" for i in excluded if i < len(steps)])

    onnx.checker.check_model(lowered.model, full_check=True)
    assert sorted([*lowered.lowered, *lowered.fp32_nodes]) == sorted(f"n{i}" for i in range(len(steps)))
    io_dtype = DataType.FLOAT32 if keep_io else DataType.FLOAT16 if to == "fp16" else DataType.BFLOAT16
    assert {spec.dtype for spec in Model.from_proto(lowered.model).info.outputs} == {io_dtype}


@pytest.mark.parametrize("opset", [7, 8, 9, 17])
def test_peaks_are_those_of_finite_values(opset: int) -> None:
    # `a` is kept in FP32 and given to `b` in 16 bit; `e` has no elements.
    text = """(float[5] x, float[0] e) => (float[5] y, float[0] z) {
        a = Mul(x, c) b = Neg(a) m = Neg(x) y = Add(m, b) n = Neg(e) z = Neg(n) }"""
    proto = models.model(text, {"c": np.float32(1e6)}, opset=opset, ir_version=4)
    low = lower_precision(proto, "fp16").model
    emulate_low_precision(low)
    peaks = watch_peaks(low)
    feed = {"x": np.float32([1, -2, np.nan, 1e5, np.inf]), "e": np.zeros(0, np.float32)}
    outputs = run(low, feed)
    peak_values = {tensor: float(outputs[peak]) for tensor, peak in peaks.items()}
    # 1e5 * 1e6 stands for infinity, and what 16 bit cannot hold is infinite in the tensors behind.
    assert {tensor: peak for tensor, peak in peak_values.items() if peak > 1} == {"x": 1e5, "a": 2e6, "m": 2.0}
    assert {"b", "n", "e"} <= peak_values.keys()


@pytest.mark.parametrize("opset", [7, 9, 12])
def test_bf16_converts_old_operator_sets(opset: int) -> None:
    proto = models.model(
        "(float[2,4] x) => (float[2,4] y) { y = MatMul(x, w) }", {"w": models.random(4, 4)}, opset=opset
    )
    low = lower_precision(proto, "bf16").model
    emulate_low_precision(low)
    x = models.random(2, 4, seed=1)
    onnx.checker.check_model(low, full_check=True)
    np.testing.assert_allclose(run(low, {"x": x})["y"], run(proto, {"x": x})["y"], atol=0.03)


def test_inconsistent_models_are_refused() -> None:
    short, elsewhere = models.conv_net().proto, models.conv_net().proto
    short.graph.initializer[0].dims[0] += 1
    elsewhere.graph.initializer[0].data_location = TensorProto.EXTERNAL
    call = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[2] x) => (float[2] y) { y = own.once(x, x) }
        <domain: "own", opset_import: ["" : 17]> once (v) => (r) { r = Neg(v) }"""
    )
    for proto, message in ((short, "expected"), (elsewhere, "in another file"), (call, "functions cannot be inlined")):
        with pytest.raises(errors.InvalidModelError, match=message):
            convert_to_fp16(proto)


@pytest.mark.parametrize(("opset", "scale", "element"), [(17, 0.01, 1), (19, 0.01, 10), (19, 1e-6, 1), (25, 0.01, 10)])
def test_scales_are_fp16_unless_too_small(opset, scale, element) -> None:
    weights = {"s": np.float32(scale), "z": np.int8(0), "w": models.random(8, 4)}
    text = """(float[2,8] x) => (float[2,4] y) { a = Relu(x) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z)
        y = MatMul(d, w) }"""
    proto = models.model(text, weights, opset=min(opset, onnx.defs.onnx_opset_version()), ir_version=10)
    low = lower_precision(proto, "fp16").model

    onnx.checker.check_model(low, full_check=True)
    run(low, {"x": models.random(2, 8)})
    assert {t.name: t.data_type for t in low.graph.initializer}["s"] == element
    casts = [node.input[0] for node in low.graph.node if node.op_type == "Cast"]
    assert ("d" in casts) == (element == onnx.TensorProto.FLOAT)


def test_bodies_that_share_names_round_by_scope() -> None:
    # Only in the first branch is the sum i a size; w is a weight in the second, and a tensor elsewhere.
    proto = models.model(
        """(float[n,4] x, bool c) => (float[n,4] y) {
            h = Mul(x, scale)
            z = If(c) <
                then_branch = yes () => (float[n,4] t) {
                    s = Shape(h) f = Cast<to = 1>(s) i = ReduceSum<keepdims = 0>(f) k = Cast<to = 7>(i)
                    w = Cast<to = 1>(k) t = Add(h, w) },
                else_branch = no () => (float[n,4] t)
                    <float[4] w = {1.0, 2.0, 3.0, 4.0}> {
                    f = Mul(h, w) i = ReduceSum<keepdims = 0>(f) t = Mul(f, i) }
            >
            w = Relu(z)
            y = Add(w, h) }""",
        {"scale": np.array([1, 2, 3, 4], np.float32)},
    )

    low = lower_precision(proto, "fp16").model

    onnx.checker.check_model(low)
    shapes.infer_shapes(low)
    _, *bodies = map(shapes.element_types, walk.graphs(low.graph))
    assert [types["i"] for types in bodies] == [TensorProto.FLOAT, TensorProto.FLOAT16]
    emulate_low_precision(low)
    for flag in (True, False):
        feed = {"x": models.random(3, 4), "c": np.array(flag)}
        np.testing.assert_allclose(run(low, feed)["y"], run(proto, feed)["y"], rtol=0.02, atol=0.02)
