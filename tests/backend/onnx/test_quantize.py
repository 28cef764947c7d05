"""Q/DQ insertion: what is quantized, what is not, and that ONNX Runtime computes it in integers."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tests import models
from trtops import errors
from trtops.backend.environment import Processor
from trtops.backend.onnx import edit, placement, qdq
from trtops.backend.onnx.copying import copy_of
from trtops.backend.onnx.opset import raise_opset
from trtops.backend.onnx.quantize import insert_qdq, quantizable_layers, saturates, tensors_to_calibrate
from trtops.backend.onnx.walk import node_name
from trtops.backend.onnxrt.calibration import collect
from trtops.calibration import CalibrationCache, TensorRange
from trtops.calibration.quantization import OP_TYPES
from trtops.metadata import TensorMetadata
from trtops.spec import BuildConfig

STYLES = ["tensorrt", "onnxruntime"]


def residual() -> models.Case:
    weights = {"w0": models.random(4, 4, 3, 3, seed=1, scale=0.2), "w1": models.random(4, 4, 3, 3, seed=2, scale=0.2)}
    proto = models.model(
        """(float[n,4,6,6] x) => (float[n,4,6,6] y, float[n,3] z) {
            [c0] a = Conv<pads = [1,1,1,1]>(x, w0, b0)
            r = Relu(a)
            [c1] b = Conv<pads = [1,1,1,1]>(r, w1, b0)
            s = Add(b, x)
            t = Relu(s)
            [up] y = ConvTranspose<pads = [1,1,1,1]>(t, w1)
            u = Add(t, x)
            v = Relu(u)
            g = GlobalAveragePool(v)
            f = Flatten(g)
            [fc] z = Gemm(f, w2)
        }""",
        weights | {"b0": models.random(4, seed=3), "w2": models.random(4, 3, seed=4)},
        name="residual",
    )
    return models.Case(proto, {"x": models.random(2, 4, 6, 6, seed=5)}, name="residual")


CASES = [models.conv_net, models.transformer, residual]


def config(style: str = "tensorrt", **options) -> BuildConfig:
    """Without placement rules, which exclude small layers."""
    return BuildConfig(**{"precision": "int8", "qdq_rules": (), **options}).on_backend(style)


def calibrated(case: models.Case) -> CalibrationCache:
    return collect(case.proto, [case.feed], inputs=TensorMetadata.from_feed_dict(case.feed)).cache()


def of_ones(proto: onnx.ModelProto) -> CalibrationCache:
    names = [*(value.name for value in proto.graph.input), *edit.tensor_names(proto.graph)]
    return CalibrationCache(algorithm="minmax", ranges=tuple(TensorRange(name=name, amax=1.0) for name in names))


def run(proto: onnx.ModelProto, feed, *, optimize: bool = True) -> list[np.ndarray]:
    options = ort.SessionOptions()
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, dict(feed))


def relative_error(actual: np.ndarray, golden: np.ndarray) -> float:
    return float(np.sqrt(np.square(actual - golden).sum() / np.square(golden).sum()))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_quantized_models_are_valid_and_accurate(make, style) -> None:
    case = make()
    cache = calibrated(case)
    quantized = copy_of(case.proto)

    done = insert_qdq(quantized, cache, config(style))

    onnx.checker.check_model(quantized, full_check=True)
    assert list(quantized.graph.input) == list(case.proto.graph.input)
    assert [v.name for v in quantized.graph.output] == [v.name for v in case.proto.graph.output]
    assert done.layers and not done.kept_layers and not done.missing
    read = {name for node in quantized.graph.node for name in node.input}
    assert {t.name for t in quantized.graph.initializer} <= read  # the FP32 weights are gone
    for actual, golden in zip(run(quantized, case.feed, optimize=False), run(case.proto, case.feed)):
        assert 1e-4 < relative_error(actual, golden) < 0.05


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_tensorrt_pairs_are_symmetric_and_per_channel(make) -> None:
    proto = make().proto
    insert_qdq(proto, calibrated(make()), config())

    arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    makers = {name: node for node in proto.graph.node for name in node.output}
    pairs = [node for node in proto.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert Counter(n.op_type for n in pairs)["QuantizeLinear"] == len(pairs) / 2
    for node in pairs:
        zero_point, scale = arrays[node.input[2]], arrays[node.input[1]]
        assert zero_point.dtype == np.int8 and not zero_point.any() and scale.dtype == np.float32 and (scale > 0).all()
    for node in proto.graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul", "ConvTranspose"):
            assert all(makers[name].op_type == "DequantizeLinear" for name in node.input[:2])
            assert all(name in arrays and arrays[name].dtype == np.float32 for name in node.input[2:])
            # TensorRT 8.6 cannot infer the kernel's shape from computed weights.
            shapes = [list(a.ints) for a in node.attribute if a.name == "kernel_shape"]
            assert shapes == ([[3, 3]] if "Conv" in node.op_type else [])
            weight = makers[node.input[1]]
            if makers[weight.input[0]].input[0] in arrays:
                assert arrays[weight.input[1]].ndim == 1 and arrays[weight.input[1]].size > 1


def test_onnx_runtime_computes_in_integers(tmp_path) -> None:
    expected = {
        "conv_net": {"QLinearConv": 2, "QGemm": 1},
        "transformer": {"QLinearMatMul": 4, "MatMulIntegerToFloat": 4},
        "residual": {"QLinearConv": 2, "QLinearAdd": 2, "QLinearGlobalAveragePool": 1, "QGemm": 1},
    }
    for make in CASES:
        case = make()
        insert_qdq(case.proto, calibrated(make()), config("onnxruntime", qdq_op_types=OP_TYPES))

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        ort.InferenceSession(case.proto.SerializeToString(), options)
        kernels = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)

        assert {op: kernels[op] for op in expected[case.name]} == expected[case.name]
        assert not any(kernels[op] for op in ("Conv", "Gemm", "MatMul", "FusedConv", "FusedGemm"))


def test_sums_of_two_products_fit_16_bits(monkeypatch) -> None:
    for make in CASES:
        wide = make().proto
        insert_qdq(wide, calibrated(make()), config("onnxruntime"))
        assert saturates(wide)
    avx2 = Processor(name="", machine="x86_64", instruction_sets=("avx2",), sha256="")
    monkeypatch.setattr(qdq, "processor", lambda: avx2)
    for make in CASES:
        case = make()
        proto = copy_of(case.proto)

        insert_qdq(proto, calibrated(make()), config("onnxruntime"))

        assert not saturates(proto)
        for tensor in proto.graph.initializer:
            if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 4:  # channels last, as kernels read it
                weights = numpy_helper.to_array(tensor).transpose(0, 2, 3, 1).reshape(tensor.dims[0], -1)
                pairs = weights[:, : weights.shape[1] // 2 * 2].reshape(-1, 2).astype(int)
                assert 120 <= np.abs(pairs.sum(1)[pairs.prod(1) > 0]).max() <= 128
        for actual, golden in zip(run(proto, case.feed, optimize=False), run(case.proto, case.feed)):
            assert relative_error(actual, golden) < 0.05


@pytest.mark.parametrize(("largest", "scales"), [(1.0, 1), (9.0, 64)])
def test_similar_columns_of_gemm_have_one_scale(largest, scales) -> None:
    weight = np.sin(np.arange(2048, dtype=np.float32)).reshape(32, 64)
    weight[:, 5] *= largest
    proto = models.model("(float[2,32] x) => (float[2,64] y) { y = Gemm(x, w) }", {"w": weight})
    insert_qdq(proto, of_ones(proto), config("onnxruntime"))
    [scale] = [numpy_helper.to_array(tensor) for tensor in proto.graph.initializer if tensor.name == "w_scale"]
    assert scale.size == scales


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("pattern", "kept_layers"),
    [
        ("mlp_in", ["mlp_in"]),
        ("mlp_*", ["mlp_in", "mlp_out"]),
        ("m3", ["mlp_out"]),
        ("?0", ["q", "k", "v", "scores", "a0"]),
    ],
)
def test_layers_are_kept_by_name_pattern_or_output(pattern, kept_layers, style) -> None:
    case = models.transformer()
    everything = quantizable_layers(case.proto, config(style))

    done = insert_qdq(case.proto, calibrated(models.transformer()), config(style, keep=(pattern,)))

    assert list(done.kept_layers) == kept_layers
    assert done.layers == tuple(name for name in everything if name not in kept_layers)
    for node in case.proto.graph.node:
        if node_name(node) in kept_layers:
            assert not any(name.endswith("_dequantized") for name in node.input)


def test_partial_caches_quantize_some_layers() -> None:
    case = models.conv_net()
    cache = models.without(calibrated(models.conv_net()), "r0")

    with pytest.raises(errors.CalibrationError, match="'r0'"):
        insert_qdq(models.conv_net().proto, cache, config())
    done = insert_qdq(case.proto, cache, config(), "partial")

    assert done.missing == ("r0",) and done.layers == ("conv0", "fc")
    # Layers that only move values pass their ranges on.
    assert (
        insert_qdq(models.conv_net().proto, models.without(calibrated(models.conv_net()), "f"), config()).layers[-1]
        == "fc"
    )


def test_tensorrt_caches_become_scales() -> None:
    names = tensors_to_calibrate(models.conv_net().proto)
    assert names == ("image", "r0", "f")
    text = b"TRT-8600-EntropyCalibration2\nimage: 3c010a14\nr0: 3d003d91\nf: 3c509a7b\n"
    cache = CalibrationCache.from_tensorrt(text + b"(Unnamed Layer* 7) [Constant]_output: 3f800000\n")

    for style in STYLES:
        proto = models.conv_net().proto
        insert_qdq(proto, cache, config(style))
        arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}

        if style == "tensorrt":
            assert arrays["r0_scale"].tobytes()[::-1].hex() == "3d003d91"
        else:  # after a Relu all 255 steps are positive values
            assert arrays["r0_scale"] == pytest.approx(cache.by_name()["r0"].amax / 255)
            assert arrays["r0_zero_point"] == 0


@pytest.mark.parametrize(
    ("move", "shared"),
    [
        ("DepthToSpace<blocksize = 2>(a)", True),
        ("Tile(a, twice)", True),
        ("Slice(a, zero, one, one)", False),  # the largest value may be in another part
    ],
)
def test_scale_passes_operators_that_keep_all_elements(move: str, shared: bool) -> None:
    channels = 4 if "Tile" in move else 1
    weights = {"w": models.random(4, 4, 1, 1, seed=1), "v": models.random(3, channels, 1, 1, seed=2)}
    weights |= {"zero": np.array([0]), "one": np.array([1]), "twice": np.array([1, 1, 2, 1])}
    text = f"(float[1,4,4,4] x) => (float[n] y) {{ c = Conv(x, w) a = Relu(c) m = {move} y = Conv(m, v) }}"
    proto = models.model(text, weights)
    ranges = tuple(TensorRange(name=name, amax=amax) for name, amax in {"x": 1, "c": 4, "a": 4, "m": 1, "y": 8}.items())

    insert_qdq(proto, CalibrationCache(algorithm="minmax", ranges=ranges), config("onnxruntime"))

    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    assert (arrays["a_scale"] == arrays["m_scale"]) == shared


@pytest.mark.parametrize("optimize", [True, False])
def test_bias_with_tiny_activations_is_kept(optimize: bool) -> None:
    """It is billions of products; ONNX Runtime quantizes FP32 biases by itself, and returned zeros for it."""
    weights = {"w": models.random(6, 8, 1, 1, seed=1, scale=0.06), "b": models.random(6, seed=2, scale=0.05)}
    weights["v"] = models.random(5, 6, 1, 1, seed=4)
    text = "(float[1,8,4,4] x) => (float[1,5,4,4] y) { t = Conv(x, w, b)\n y = Conv(t, v) }"
    proto = models.model(text, weights)
    feed = {"x": models.random(1, 8, 4, 4, seed=3, scale=1e-10)}
    [golden] = run(proto, feed, optimize=False)
    largest = {"x": 4e-10, "t": float(np.abs(weights["b"]).max()), "y": float(np.abs(golden).max())}
    ranges = tuple(TensorRange(name=name, amax=amax) for name, amax in largest.items())

    insert_qdq(proto, CalibrationCache(algorithm="minmax", ranges=ranges), config("onnxruntime"))

    [y] = run(proto, feed, optimize=optimize)
    assert np.abs(y - golden).max() <= np.abs(golden).max() / 20


@pytest.mark.parametrize("in_node", [False, True])
def test_old_operator_sets_are_converted(in_node) -> None:
    weights = {"w": models.random(400, 30, scale=0.1), "b": models.random(30)}
    old = models.model("(float[2,400] x) => (float[2,30] y) { y = Gemm(x, w, b) }", weights, opset=9, ir_version=4)
    if in_node:  # as exporters of Paddle write weights
        constant = onnx.helper.make_node("Constant", [], ["w"], value=old.graph.initializer.pop(0))
        old.graph.node.insert(0, constant)
    feed = {"x": models.random(2, 400)}
    golden = run(old, feed)[0]

    insert_qdq(old, CalibrationCache(algorithm="minmax", ranges=(TensorRange(name="x", amax=3.0),)), config())

    onnx.checker.check_model(old, full_check=True)
    assert relative_error(run(old, feed)[0], golden) < 0.05


UP = np.float32([1, 1, 2, 2])
OLD = [  # operator set, nodes that compute `m` from `c`, and constants
    (7, 'm = Upsample<scales = [1.0,1.0,1.5,2.0], mode = "linear">(c)', {}),
    (9, 'm = Upsample<mode = "nearest">(c, s)', {"s": np.float32([1, 1, 1.5, 2])}),
    (9, 'u = Upsample<mode = "linear">(c, s) m = Upsample(u, s)', {"s": UP}),
    (10, 'm = Resize<mode = "linear">(c, s)', {"s": UP}),
    (10, "m = Resize(c, s)", {"s": np.float32([1, 1, 0.5, 0.75])}),
    (10, "m = Scatter<axis = 1>(c, i, u)", {"i": np.zeros((1, 2, 1, 1), np.int64), "u": models.random(1, 2, 1, 1)}),
    (9, "m = Hardmax(c)", {}),
    (11, "h = Softmax(c) g = Hardmax(h) m = Mul(g, c)", {}),
]


@pytest.mark.parametrize(("opset", "text", "weights"), OLD, ids=range(len(OLD)))
def test_conversion_keeps_values_and_names(opset, text, weights) -> None:
    graph = f"(float[2,3,6,6] x) => (float[a,b,c,d] y) {{ c = Conv(x, w) {text} y = Conv(m, v) }}"
    kernels = {"w": models.random(4, 3, 3, 3, seed=1), "v": models.random(2, 4, 1, 1, seed=2)}
    proto = models.model(graph, kernels | weights, opset=opset, ir_version=4)
    for node in proto.graph.node:
        node.name = f"n_{node.output[0]}"
    names = {name for node in proto.graph.node for name in (node.name, *node.output)}
    feed = {"x": models.random(2, 3, 6, 6, seed=3)}
    golden = run(proto, feed, optimize=False)[0]
    case = models.Case(copy_of(proto), feed)

    raise_opset(proto, 13, "Q/DQ nodes")

    assert names <= {name for node in proto.graph.node for name in (node.name, *node.output)}
    np.testing.assert_allclose(run(proto, feed, optimize=False)[0], golden, rtol=1e-5, atol=1e-5)
    done = insert_qdq(case.proto, calibrated(case), config("onnxruntime"))
    assert done.layers[0] == "n_c" and "n_y" in done.layers


def test_layers_without_integer_kernels_name_the_option() -> None:
    text = "(float[1,4,6,6] x) => (float[1,4,8,8] y) { [up] y = ConvTranspose(x, w) }"
    proto = models.model(text, {"w": models.random(4, 4, 3, 3)})
    for options, named in (({}, True), ({"qdq_op_types": ("ConvTranspose",)}, False)):
        done = insert_qdq(copy_of(proto), of_ones(proto), config("onnxruntime", **options))
        assert ("without 8-bit kernels: up (--qdq-op-types Conv ConvTranspose Gemm MatMul" in done.sentence()) == named
        assert bool(done.layers) != named
    with pytest.raises(errors.CalibrationError, match="--qdq-op-types"):
        insert_qdq(copy_of(proto), of_ones(proto), config("onnxruntime")).require_layers()
    assert "--qdq-op-types" not in insert_qdq(copy_of(proto), of_ones(proto), config()).sentence()


W, ONES = models.random(32, 32, 3, 3, scale=0.05), np.ones(32, np.float32)
TWO = {"w": W, "o": ONES}
IMAGE = "(float[1,32,8,8] x) => (float[1,32,8,8] y) {"
SAME = "Conv<pads = [1,1,1,1]>"
RULED = [  # rule, precision, graph, weights, and whether node n is quantized with the rule
    ("gemv", "int8", "(float[1,32] x) => (float[1,32] y) { [n] y = MatMul(x, w) }", {"w": W[:, :, 0, 0]}, False),
    ("gemv", "int8", "(float[b,32] x) => (float[b,32] y) { [n] y = MatMul(x, w) }", {"w": W[:, :, 0, 0]}, False),
    ("small_matmul", "int8", "(float[4,32] x) => (float[4,8] y) { [n] y = MatMul(x, w) }", {"w": W[:, :8, 0, 0]},
     False),
    ("small_matmul", "fp8", "(float[4,8] x) => (float[4,32] y) { [n] y = Gemm<transB = 1>(x, w) }",
     {"w": W[:, :8, 0, 0]}, False),
    ("computed_kernel", "int8", "(float[1,32,8,8] x, float[32,32,3,3] w) => (float[1,32,6,6] y) { [n] y = Conv(x, w) }",
     {}, False),
    ("few_channels", "int8", "(float[1,12,8,8] x) => (float[1,12,6,6] y) { [n] y = Conv(x, w) }", {"w": W[:12, :12]},
     False),
    ("few_channels", "fp8", "(float[1,16,8,8] x) => (float[1,32,6,6] y) { [n] y = Conv(x, w) }", {"w": W[:, :16]},
     False),
    ("large_kernel", "fp8", "(float[1,32,8,8] x) => (float[1,32,3,3] y) { [n] y = Conv(x, w) }",
     {"w": models.random(32, 32, 6, 6)}, False),
    ("attention", "int8", "(float[2,32,32] q, float[2,32,32] k, float[2,32,32] m) => (float[2,32,32] y) {"
     "s = MatMul(q, k) a = Add(s, m) p = Softmax(a) [n] y = MatMul(p, k) }", {}, False),
    ("attention", "int8", "(float[2,520,32] q, float[2,32,520] k, float[2,520,32] v) => (float[2,520,32] y) {"
     "s = MatMul(q, k) p = Softmax(s) [n] y = MatMul(p, v) }", {}, False),
    ("attention", "fp8", "(float[2,32,300] q, float[2,300,32] k, float[2,32,32] v) => (float[2,32,32] y) {"
     "[n] s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v) }", {}, False),
    ("residual_add", "int8", f"{IMAGE} a = Relu(x) b = {SAME}(a, w) c = BatchNormalization(b, o, o, o, o)"
     f" [n] d = Add(c, a) e = Relu(d) y = {SAME}(e, w) }}", TWO, True),
    ("pointwise", "int8", f"{IMAGE} a = {SAME}(x, w) b = Tanh(a) c = Elu(x) [n] d = Mul(b, c) y = {SAME}(d, w) }}",
     {"w": W}, True),
    ("layer_norm", "int8", f"{IMAGE} a = {SAME}(x, w) b = Transpose<perm = [0,2,3,1]>(a) "
     f"[n] c = LayerNormalization(b, o, o) d = Transpose<perm = [0,3,1,2]>(c) y = {SAME}(d, w) }}", TWO, True),
    ("pool", "int8", f"{IMAGE} a = {SAME}(x, w) b = Relu(a) [n] c = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(b)"
     f" y = {SAME}(c, w) }}", {"w": W}, True),
    ("resize", "int8", "(float[1,32,4,4] x) => (float[1,32,6,6] y) { a = Conv<pads = [1,1,1,1]>(x, w)"
     " [n] b = Resize(a, , t) y = Conv(b, w) }", {"w": W, "t": np.float32([1, 1, 2, 2])}, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "precision", "text", "weights", "quantized"), RULED, ids=lambda value: str(value)[:12]
)
def test_each_rule_decides_about_its_node(rule, precision, text, weights, quantized) -> None:
    names = placement.RULES
    assert {row[0] for row in RULED} | {"concat"} == set(names)
    was_quantized = {}
    for rules in (None, tuple(name for name in names if name != rule)):
        proto = models.model(text, weights)
        done = insert_qdq(proto, of_ones(proto), config(precision=precision, qdq_rules=rules))
        onnx.checker.check_model(proto, full_check=True)
        was_quantized[rules is None] = "n" in done.layers
        assert ("n" in dict(done.excluded).get(rule, ())) == (rules is None and not quantized)
    assert was_quantized == {True: quantized, False: not quantized}


def test_residual_sum_reads_only_its_other_operand_in_8_bits() -> None:
    _, _, text, weights, _ = next(row for row in RULED if row[0] == "residual_add")
    proto = models.model(text, weights)
    insert_qdq(proto, of_ones(proto), config(qdq_rules=None))

    [add] = [node for node in proto.graph.node if node.op_type == "Add"]
    assert list(add.input) == ["c", "a_dequantized"]


def test_concatenated_tensors_share_one_scale() -> None:
    text = f"""(float[1,32,8,8] x) => (float[1,32,8,8] y, float[1,32,8,8] z) {{ a = {SAME}(x, w) b = Relu(a)
        c = Concat<axis = 1>(b, x) y = {SAME}(c, v) z = {SAME}(b, w) }}"""
    scales = {}
    for rules in (None, ()):
        proto = models.model(text, {"w": W, "v": models.random(32, 64, 3, 3)})
        ranges = tuple(TensorRange(name=name, amax=amax) for name, amax in (("x", 1.0), ("b", 2.0), ("c", 3.0)))
        insert_qdq(proto, CalibrationCache(algorithm="minmax", ranges=ranges), config(qdq_rules=rules))
        arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer if t.name[1:] == "_scale"}
        scales[rules] = [round(float(arrays[f"{name}_scale"]) * 127, 3) for name in "xbc"]
    assert scales == {None: [3, 3, 3], (): [1, 2, 3]}


def test_fp8_rounds_like_e4m3() -> None:
    """ONNX Runtime emulates it on a CPU: activations with one scale, weights with one per column."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x, w = models.random(4, 32, seed=1), models.random(32, 16, seed=2) * np.logspace(-3, 2, 16, dtype=np.float32)
    proto = models.model("(float[4,32] x) => (float[4,16] y) { y = MatMul(x, w) }", {"w": w})
    ranges = (TensorRange(name="x", amax=float(np.abs(x).max()) / 2),)  # larger values saturate

    insert_qdq(proto, CalibrationCache(algorithm="minmax", ranges=ranges), config(precision="fp8"))

    def rounded(array, scale):
        return np.clip(array / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale

    onnx.checker.check_model(proto, full_check=True)
    expected = rounded(x, np.float32(ranges[0].amax / 448)) @ rounded(w, (np.abs(w).max(0) / 448).astype(np.float32))
    [y] = run(proto, {"x": x}, optimize=False)
    assert relative_error(y, expected) < 1e-6 < 1e-3 < relative_error(y, x @ w)
    with pytest.raises(errors.ConfigError, match="ConvTranspose"):
        quantizable_layers(models.conv_net().proto, config(precision="fp8", qdq_op_types=("ConvTranspose",)))
    with pytest.raises(errors.ConfigError, match="gemv"):
        quantizable_layers(models.conv_net().proto, config(qdq_rules=("gem",)))
