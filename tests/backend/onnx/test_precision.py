"""FP16 and BF16 rewriting: valid models, kept borders, and results near those in FP32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from tests import models
from trtops import errors
from trtops.backend.onnx.model import Model, model_digest
from trtops.backend.onnx.precision import convert_to_fp16, lower_precision
from trtops.metadata import DataType


def run(proto: onnx.ModelProto, feed: models.Arrays) -> models.Arrays:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed))))


def element_of(proto: onnx.ModelProto, weight: str) -> int:
    return next(t.data_type for t in proto.graph.initializer if t.name == weight)


def casts(proto: onnx.ModelProto) -> int:
    return sum(node.op_type == "Cast" for node in proto.graph.node)


@pytest.mark.parametrize("keep_io", [True, False])
@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
def test_an_fp16_model_is_valid_and_near_the_fp32_one(make: Callable[[], models.Case], keep_io: bool) -> None:
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
def test_a_bf16_model_is_valid_and_keeps_its_borders(make: Callable[[], models.Case]) -> None:
    case = make()

    lowered = lower_precision(case.proto, "bf16").model

    onnx.checker.check_model(lowered, full_check=True)
    info = Model.from_proto(lowered).info
    assert (info.inputs, info.outputs) == (
        Model.from_proto(case.proto).info.inputs,
        Model.from_proto(case.proto).info.outputs,
    )
    assert any(t.data_type == TensorProto.BFLOAT16 for t in lowered.graph.initializer)


def test_bf16_of_an_old_operator_set_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="operator set 13"):
        lower_precision(models.identity().proto, "bf16")


def test_casts_stand_only_at_the_borders_of_a_model_that_lowers_whole() -> None:
    half = lower_precision(models.transformer().proto, "fp16")

    assert half.kept == () and len(half.lowered) == 28
    assert [n.op_type for n in half.model.graph.node if "Cast" in n.op_type] == ["Cast", "Cast"]
    assert {t.data_type for t in half.model.graph.initializer} == {TensorProto.FLOAT16, TensorProto.INT64}
    assert casts(convert_to_fp16(models.transformer().proto, keep_io=False)) == 0


def test_tensors_keep_their_names_for_comparison_with_the_fp32_model() -> None:
    half = convert_to_fp16(models.conv_net().proto)

    assert {"c0", "n0", "r0", "logits"} <= {name for node in half.graph.node for name in node.output}
    assert {t.name for t in half.graph.initializer} == {t.name for t in models.conv_net().proto.graph.initializer}


@pytest.mark.parametrize("exclude", [["softmax"], ["Softmax"], ["soft*"]])
def test_excluded_nodes_stay_in_fp32_by_name_type_or_pattern(exclude: list[str]) -> None:
    half = lower_precision(models.conv_net().proto, "fp16", exclude=exclude)

    assert half.kept == ("softmax",)
    softmax = next(n for n in half.model.graph.node if n.op_type == "Softmax")
    assert softmax.input[0] == "logits_float32" and softmax.output[0] == "scores"
    with pytest.raises(errors.ConfigError, match="sotfmax"):
        convert_to_fp16(models.conv_net().proto, exclude=["sotfmax"])


def test_a_weight_read_in_both_precisions_is_stored_in_both() -> None:
    proto = models.model(
        "(float[4] x) => (float[4] y) { [a] t = Mul(x, w)\n [b] y = Add(t, w) }", {"w": models.random(4)}
    )

    half = convert_to_fp16(proto, exclude=["b"])

    assert {t.name: t.data_type for t in half.graph.initializer} == {"w": 1, "w_float16": 10}
    x = models.random(4, seed=2)
    np.testing.assert_allclose(run(half, {"x": x})["y"], run(proto, {"x": x})["y"], atol=1e-2)


def test_everything_excluded_is_the_model_it_was() -> None:
    case = models.transformer()

    same = lower_precision(case.proto, "fp16", exclude=["*"])

    assert same.lowered == ()
    np.testing.assert_array_equal(run(same.model, case.feed)["y"], run(case.proto, case.feed)["y"])


def test_inputs_that_an_operator_takes_in_fp32_only_stay_so() -> None:
    proto = models.model(
        '(float[1,1,4,4] x) => (float[1,1,8,8] y) { y = Resize<mode = "linear">(x, roi, scales) }',
        {"scales": np.array([1, 1, 2, 2], np.float32), "roi": np.zeros(0, np.float32)},
    )

    half = convert_to_fp16(proto)

    assert element_of(half, "scales") == TensorProto.FLOAT
    x = models.random(1, 1, 4, 4)
    np.testing.assert_allclose(run(half, {"x": x})["y"], run(proto, {"x": x})["y"], atol=1e-2)


def test_second_outputs_with_a_type_of_their_own_stay() -> None:
    proto = models.model(
        """(float[2,8] x) => (float[2,8] y, float[2,1] m) {
            y, mean = LayerNormalization<axis = -1>(x, g, b)
            m = Identity(mean)
        }""",
        {"g": np.ones(8, np.float32), "b": np.zeros(8, np.float32)},
    )

    half = convert_to_fp16(proto)

    onnx.checker.check_model(half, full_check=True)
    x = models.random(2, 8)
    for name, array in run(proto, {"x": x}).items():
        np.testing.assert_allclose(run(half, {"x": x})[name], array, atol=1e-2)


def test_top_k_lowers_and_its_indices_stay() -> None:
    proto = models.model("(float[8] x) => (float[3] v, int64[3] i) { v, i = TopK(x, k) }", {"k": np.array([3])})
    x = np.arange(8, dtype=np.float32)[::-1].copy()

    out = run(convert_to_fp16(proto), {"x": x})

    assert out["i"].tolist() == [0, 1, 2] and out["v"].tolist() == [7, 6, 5]


def test_a_node_that_makes_no_float_reads_its_inputs_unrounded() -> None:
    proto = models.model("(float[2] x) => (bool[2] y) { y = Greater(x, limit) }", {"limit": np.float32(1)})

    out = run(convert_to_fp16(proto), {"x": np.array([1.0001, 1.0], np.float32)})

    assert out["y"].tolist() == [True, False]


def test_custom_operators_keep_fp32_and_the_rest_lowers() -> None:
    half = lower_precision(models.no_kernel().proto, "fp16")

    assert half.kept == ("frob", "y")  # what the Relu behind it reads is of unknown type
    frob = next(n for n in half.model.graph.node if n.op_type == "Frobnicate")
    assert frob.input[0] == "t_float32"


def test_sequences_keep_their_element_type() -> None:
    proto = models.model(
        """(float[4] x) => (float[8] y) {
            t = Relu(x)
            s = SequenceConstruct(t, x)
            u = SequenceAt(s, zero)
            v = Relu(u)
            y = Concat<axis = 0>(v, t)
        }""",
        {"zero": np.array(0)},
    )

    half = convert_to_fp16(proto)

    x = models.random(4)
    np.testing.assert_allclose(run(half, {"x": x})["y"], run(proto, {"x": x})["y"], atol=1e-2)


def test_random_values_follow_no_input_into_fp16() -> None:
    proto = models.model(
        "(float[4] x) => (float[4] y) { t = Relu(x)\n r = RandomUniformLike<low = 0.0, high = 0.0>(t)\n y = Add(t, r) }"
    )

    half = convert_to_fp16(proto)

    onnx.checker.check_model(half, full_check=True)
    x = models.random(4)
    np.testing.assert_allclose(run(half, {"x": x})["y"], np.maximum(x, 0), atol=1e-2)


def test_weights_listed_as_inputs_lower_and_are_inputs_no_longer() -> None:
    case = models.conv_net()
    case.proto.ir_version = 3
    for tensor in case.proto.graph.initializer:
        case.proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, list(tensor.dims)))

    half = convert_to_fp16(case.proto)

    onnx.checker.check_model(half, full_check=True)
    assert [value.name for value in half.graph.input] == ["image"]
    np.testing.assert_allclose(run(half, case.feed)["scores"], run(case.proto, case.feed)["scores"], atol=1e-2)


def test_model_functions_are_inlined() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[4] x) => (float[4] y) { y = local.twice(x) }
        <domain: "local", opset_import: ["" : 17]>
        twice (a) => (b) { b = Add(a, a) }"""
    )

    half = lower_precision(proto, "fp16")

    assert len(half.lowered) == 1
    assert run(half.model, {"x": np.ones(4, np.float32)})["y"].tolist() == [2, 2, 2, 2]


def _with_constant(op: str, value: Any) -> onnx.ModelProto:
    return models.model(
        f"(float[2] x) => (float[2] y) {{ [node] y = {op}(x, c) }}", {"c": np.asarray(value, np.float32)}
    )


class TestOutOfRange:
    def test_a_large_weight_keeps_its_node_in_fp32(self) -> None:
        half = lower_precision(_with_constant("Div", [1e6, 1.0]), "fp16")

        assert half.too_large == half.kept == ("node",)
        np.testing.assert_allclose(run(half.model, {"x": np.array([1e6, 2], np.float32)})["y"], [1, 2])

    def test_a_mask_is_clamped(self) -> None:
        for stands_for_infinity in (-1e9, float(np.finfo(np.float32).min)):
            half = lower_precision(_with_constant("Add", [stands_for_infinity, 0]), "fp16")

            assert half.clamped == ("c",) and half.lowered == ("node",)
            assert numpy_helper.to_array(half.model.graph.initializer[0]).tolist() == [-65504, 0]

    def test_infinities_and_nan_stay_what_they_are(self) -> None:
        half = lower_precision(_with_constant("Add", [np.inf, np.nan]), "fp16")

        array = numpy_helper.to_array(half.model.graph.initializer[0])
        assert np.isposinf(array[0]) and np.isnan(array[1]) and half.clamped == ()

    def test_an_epsilon_does_not_become_zero(self) -> None:
        half = lower_precision(_with_constant("Add", 1e-12), "fp16")

        assert numpy_helper.to_array(half.model.graph.initializer[0]) == np.float16(6e-8)

    def test_tiny_values_among_others_are_flushed_and_counted(self) -> None:
        half = lower_precision(_with_constant("Mul", [1e-9, 1]), "fp16")

        assert half.flushed == {"c": 1}
        assert numpy_helper.to_array(half.model.graph.initializer[0]).tolist() == [0, 1]

    def test_bf16_has_the_range_of_fp32(self) -> None:
        half = lower_precision(_with_constant("Add", [1e30, 1e-30]), "bf16")

        assert (half.too_large, half.clamped, half.flushed) == ((), (), {})

    def test_too_large_weights_are_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        convert_to_fp16(_with_constant("Div", [1e6, 1.0]))

        assert "exceed the 16-bit range: node" in caplog.text


def test_scales_of_quantization_stay_in_fp32() -> None:
    half = lower_precision(models.qdq_net().proto, "fp16")

    assert element_of(half.model, "s_x") == element_of(half.model, "s_w") == TensorProto.FLOAT
    assert half.kept == ("x_q", "x_d", "w_d")


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
def test_any_choice_of_nodes_to_keep_gives_a_valid_model(
    steps: list[tuple[str, int, int]], kept: set[int], keep_io: bool, to: Literal["fp16", "bf16"]
) -> None:
    made = ["x", "w"]
    lines = []
    for i, (op, a, b) in enumerate(steps):
        args = [made[a % len(made)], *([made[b % len(made)]] if op in BINARY else [])]
        lines.append(f"[n{i}] t{i} = {op}({', '.join(args)})")
        made.append(f"t{i}")
    outputs = [f"t{i}" for i in range(len(steps)) if i % 2 == 0 or i == len(steps) - 1]
    declared = ", ".join(f"float[3] {name}" for name in outputs)
    proto = models.model(f"(float[3] x) => ({declared}) {{ {chr(10).join(lines)} }}", {"w": models.random(3, seed=1)})

    lowered = lower_precision(proto, to, keep_io=keep_io, exclude=[f"n{i}" for i in kept if i < len(steps)])

    onnx.checker.check_model(lowered.model, full_check=True)
    assert sorted([*lowered.lowered, *lowered.kept]) == sorted(f"n{i}" for i in range(len(steps)))
    wanted = DataType.FLOAT32 if keep_io else DataType.FLOAT16 if to == "fp16" else DataType.BFLOAT16
    assert {spec.dtype for spec in Model.from_proto(lowered.model).info.outputs} == {wanted}


def test_models_that_contradict_themselves_are_refused_by_name() -> None:
    twice = models.model("(float[4] x) => (float[4] y) { y = Mul(x, w) }", {"w": np.ones(4, np.float32)})
    twice.graph.node[0].output[0] = "w"
    short = models.conv_net().proto
    short.graph.initializer[0].dims[0] += 1
    elsewhere = models.conv_net().proto
    elsewhere.graph.initializer[0].data_location = TensorProto.EXTERNAL
    call = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[2] x) => (float[2] y) { y = own.once(x, x) }
        <domain: "own", opset_import: ["" : 17]> once (v) => (r) { r = Neg(v) }"""
    )

    for proto, message in (
        (twice, "defined twice"),
        (short, "expected"),
        (elsewhere, "in another file"),
        (call, "functions cannot be inlined"),
    ):
        with pytest.raises(errors.ModelError, match=message):
            convert_to_fp16(proto)
