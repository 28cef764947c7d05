"""Q/DQ insertion: what is quantized, what is not, and that ONNX Runtime computes it in integers."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tests import models
from trtops import errors
from trtops.backend.onnx.quantize import insert_qdq, quantizable_layers, tensors_to_calibrate
from trtops.backend.onnx.walk import copy_of, node_name
from trtops.backend.onnxrt.calibration import collect
from trtops.calibration import CalibrationCache, TensorRange
from trtops.metadata import TensorMetadata

STYLES = ["tensorrt", "onnxruntime"]


def residual() -> models.Case:
    weights = {"w0": models.random(4, 4, 3, 3, seed=1, scale=0.2), "w1": models.random(4, 4, 3, 3, seed=2, scale=0.2)}
    proto = models.model(
        """(float[n,4,6,6] x) => (float[n,4,6,6] y, float[n,4,6,6] z) {
            [c0] a = Conv<pads = [1,1,1,1]>(x, w0, b0)
            r = Relu(a)
            [c1] b = Conv<pads = [1,1,1,1]>(r, w1, b0)
            s = Add(b, x)
            t = Relu(s)
            [up] y = ConvTranspose<pads = [1,1,1,1]>(t, w1)
            z = Sigmoid(t)
        }""",
        weights | {"b0": models.random(4, seed=3)},
        name="residual",
    )
    return models.Case(proto, {"x": models.random(2, 4, 6, 6, seed=5)}, name="residual")


CASES = [models.conv_net, models.transformer, residual]


def calibrated(case: models.Case) -> CalibrationCache:
    return collect(case.proto, [case.feed], inputs=TensorMetadata.from_feed_dict(case.feed)).cache()


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

    done = insert_qdq(quantized, cache, style=style)

    onnx.checker.check_model(quantized, full_check=True)
    assert list(quantized.graph.input) == list(case.proto.graph.input)
    assert [v.name for v in quantized.graph.output] == [v.name for v in case.proto.graph.output]
    assert done.layers and not done.kept and not done.missing
    read = {name for node in quantized.graph.node for name in node.input}
    assert {t.name for t in quantized.graph.initializer} <= read  # the FP32 weights are gone
    for actual, golden in zip(run(quantized, case.feed, optimize=False), run(case.proto, case.feed)):
        assert 1e-4 < relative_error(actual, golden) < 0.05


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_tensorrt_pairs_are_symmetric_and_per_channel(make) -> None:
    proto = make().proto
    insert_qdq(proto, calibrated(make()), style="tensorrt")

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
        "residual": {"QLinearConv": 2, "QLinearAdd": 1},
    }
    for make in CASES:
        case = make()
        insert_qdq(case.proto, calibrated(make()), style="onnxruntime")

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        ort.InferenceSession(case.proto.SerializeToString(), options)
        kernels = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)

        assert {op: kernels[op] for op in expected[case.name]} == expected[case.name]
        assert not any(kernels[op] for op in ("Conv", "Gemm", "MatMul", "FusedConv", "FusedGemm"))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("mlp_in", ["mlp_in"]),
        ("mlp_*", ["mlp_in", "mlp_out"]),
        ("m3", ["mlp_out"]),
        ("?0", ["q", "k", "v", "scores", "a0"]),
    ],
)
def test_layers_are_kept_by_name_pattern_or_output(pattern, kept, style) -> None:
    case = models.transformer()
    everything = quantizable_layers(case.proto)

    done = insert_qdq(case.proto, calibrated(models.transformer()), style=style, keep=[pattern])

    assert list(done.kept) == kept
    assert done.layers == tuple(name for name in everything if name not in kept)
    for node in case.proto.graph.node:
        if node_name(node) in kept:
            assert not any(name.endswith("_dequantized") for name in node.input)


def test_partial_caches_quantize_some_layers() -> None:
    case = models.conv_net()
    cache = models.without(calibrated(models.conv_net()), "r0")

    with pytest.raises(errors.CalibrationError, match="'r0'"):
        insert_qdq(models.conv_net().proto, cache)
    done = insert_qdq(case.proto, cache, policy="partial")

    assert done.missing == ("r0",) and done.layers == ("conv0", "fc")
    # Layers that only move values pass their ranges on.
    assert insert_qdq(models.conv_net().proto, models.without(calibrated(models.conv_net()), "f")).layers[-1] == "fc"


def test_tensorrt_caches_become_scales() -> None:
    names = tensors_to_calibrate(models.conv_net().proto)
    assert names == ("image", "r0", "f")
    text = b"TRT-8600-EntropyCalibration2\nimage: 3c010a14\nr0: 3d003d91\nf: 3c509a7b\n"
    cache = CalibrationCache.from_tensorrt(text + b"(Unnamed Layer* 7) [Constant]_output: 3f800000\n")

    for style in STYLES:
        proto = models.conv_net().proto
        insert_qdq(proto, cache, style=style)
        arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}

        if style == "tensorrt":
            assert arrays["r0_scale"].tobytes()[::-1].hex() == "3d003d91"
        else:  # after a Relu all 255 steps are positive values
            assert arrays["r0_scale"] == pytest.approx(cache.by_name()["r0"].amax / 255)
            assert arrays["r0_zero_point"] == 0


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

    insert_qdq(proto, CalibrationCache(algorithm="minmax", ranges=ranges), style="onnxruntime")

    [y] = run(proto, feed, optimize=optimize)
    assert np.abs(y - golden).max() <= np.abs(golden).max() / 20


def test_old_operator_sets_are_converted() -> None:
    weights = {"w": models.random(4, 3), "b": models.random(3)}
    old = models.model("(float[2,4] x) => (float[2,3] y) { y = Gemm(x, w, b) }", weights, opset=9, ir_version=4)
    feed = {"x": models.random(2, 4)}
    golden = run(old, feed)[0]

    insert_qdq(old, CalibrationCache(algorithm="minmax", ranges=(TensorRange(name="x", amax=3.0),)))

    onnx.checker.check_model(old, full_check=True)
    assert relative_error(run(old, feed)[0], golden) < 0.05
