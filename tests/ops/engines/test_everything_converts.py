"""Models of all kinds convert: types without numpy dtypes, strings, empty tensors, learners, bodies, token ids."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests import models
from tests.models import random
from trtops import ConvertConfig, MemoryTracker, OnnxRuntimeOptions, convert, errors
from trtops.backend.onnx.accepted_inputs import accepted_inputs
from trtops.backend.onnx.model import Model
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig

vi, node = h.make_tensor_value_info, h.make_node
W = numpy_helper.from_array(random(8, 4, seed=1), "w")
TABLE = numpy_helper.from_array(random(50, 8, seed=2), "table")
POSITIONS = numpy_helper.from_array(random(3, 8, seed=3), "places")
SCALE = numpy_helper.from_array(np.float32(0.1), "s")
ML = h.make_opsetid("ai.onnx.ml", 2)


def proto(nodes, inputs, outputs, weights=(), *, extra=(), functions=()) -> onnx.ModelProto:
    graph = h.make_graph(nodes, "g", inputs, outputs, list(weights))
    imports = [h.make_opsetid("", 21), *extra]
    return h.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions))


def product(*before, weights=(W,), kind=T.FLOAT, **options) -> onnx.ModelProto:
    nodes = [*before, node("MatMul", ["a", "w"], ["y"])]
    return proto(nodes, [vi("x", kind, ["n", 8])], [vi("y", 1, ["n", 4])], weights, **options)


def scan() -> onnx.ModelProto:
    state, item = vi("s", 1, [1, 8]), vi("i", 1, [1, 8])
    nodes = [node("Add", ["s", "i"], ["t"]), node("MatMul", ["t", "w"], ["o"])]
    body = h.make_graph(nodes, "body", [state, item], [vi("t", 1, [1, 8]), vi("o", 1, [1, 4])])
    return proto(
        [node("Scan", ["s0", "x"], ["s1", "y"], num_scan_inputs=1, body=body)],
        [vi("s0", 1, [1, 8]), vi("x", 1, ["t", 1, 8])],
        [vi("s1", 1, [1, 8]), vi("y", 1, ["t", 1, 4])],
        [W],
    )


def function() -> onnx.ModelProto:
    inside = [node("MatMul", ["p", "p"], ["q"]), node("Add", ["q", "p"], ["r"])]
    twice = h.make_function("own", "Twice", ["p"], ["r"], inside, [h.make_opsetid("", 21)])
    called = node("Twice", ["x"], ["y"], domain="own")
    square = (vi("x", 1, [4, 4]), vi("y", 1, [4, 4]))
    return proto([called], [square[0]], [square[1]], extra=[h.make_opsetid("own", 1)], functions=[twice])


def tokens() -> onnx.ModelProto:
    nodes = [
        node("Gather", ["table", "input_ids"], ["e"]),
        node("Cast", ["position_ids"], ["c"], to=T.INT64),
        node("Gather", ["places", "c"], ["p"]),
        node("Add", ["e", "p"], ["f"]),
        node("Cast", ["attention_mask"], ["m"], to=1),
        node("ReduceMean", ["m"], ["k"], keepdims=0),
        node("Mul", ["f", "k"], ["y"]),
    ]
    ids = [vi("input_ids", 7, ["b", "s"]), vi("position_ids", 6, ["b", "s"]), vi("attention_mask", 7, ["b", "s"])]
    return proto(nodes, ids, [vi("y", 1, ["b", "s", 8])], [TABLE, POSITIONS])


def labels(**keys) -> onnx.ModelProto:
    encode = node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **keys)
    kinds = (T.STRING, 1) if "keys_strings" in keys else (T.INT64, T.STRING)
    return proto([encode], [vi("x", kinds[0], ["n"])], [vi("y", kinds[1], ["n"])], extra=[ML])


MODELS = {
    "bfloat16": lambda: product(node("Cast", ["x"], ["a"], to=1), kind=T.BFLOAT16),
    "float8": lambda: product(
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s"], ["a"]),
        weights=(W, SCALE, h.make_tensor("z", T.FLOAT8E4M3FN, [], b"\0", raw=True)),
    ),
    "float8 input": lambda: product(node("Cast", ["x"], ["a"], to=1), kind=T.FLOAT8E4M3FN),
    "int4": lambda: proto(
        [node("DequantizeLinear", ["q", "s"], ["w"]), node("MatMul", ["x", "w"], ["y"])],
        [vi("x", 1, ["n", 8])],
        [vi("y", 1, ["n", 4])],
        [h.make_tensor("q", T.INT4, [8, 4], [i % 7 - 3 for i in range(32)]), SCALE],
    ),
    "strings in": lambda: labels(keys_strings=["cat", "dog"], values_floats=[1.0, 2.0], default_float=np.nan),
    "strings out": lambda: labels(keys_int64s=[0, 1], values_strings=["cat", "dog"], default_string="?"),
    "nothing in a dimension": lambda: proto(
        [node("Concat", ["x", "p"], ["y"], axis=1)],
        [vi("x", 1, [2, 4]), vi("p", 1, [2, 0])],
        [vi("y", 1, [2, 4])],
    ),
    "scan": scan,
    "function": function,
    "tokens": tokens,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_it_converts(name, tmp_path):
    onnx.save(MODELS[name](), tmp_path / "model.onnx")
    config = ConvertConfig(check=CheckConfig(latency_runs=0))
    result = convert(tmp_path / "model.onnx", config, tracker=MemoryTracker())
    dynamic = any(dim.dim_param for x in MODELS[name]().graph.input for dim in x.type.tensor_type.shape.dim)
    assert result.verdict == ("unproven" if dynamic else "good"), result.page()
    assert all(entry.verdict == "good" for entry in result.evaluation.evidence.shapes)
    assert all(output.statistics is not None for output in result.evaluation.report.outputs)


BODIES = {
    # Names are used again in each branch and behind it, and both branches read a computed tensor.
    "if": """(float[n,8] x, bool c) => (float[n,8] y) {
        h = MatMul(x, w)
        z = If(c) <
            then_branch = yes () => (float[n,8] t) { a = MatMul(h, w) t = Relu(a) },
            else_branch = no () => (float[n,8] t) { a = Sigmoid(h) t = MatMul(a, w) }
        >
        a = Tanh(z) y = MatMul(a, w) }""",
    "if in loop": """(float[n,8] x, bool c) => (float[n,8] y) {
        h = MatMul(x, w)
        trips = Constant<value_int = 3>()
        last = Loop(trips, c, h) <
            body = step (int64 i, bool k, float[n,8] s) => (bool k2, float[n,8] s2) {
                k2 = Identity(k)
                m = If(k) <
                    then_branch = yes () => (float[n,8] t) { t = MatMul(s, w) },
                    else_branch = no () => (float[n,8] t) { t = Neg(h) }
                >
                s2 = Add(m, h) }
        >
        m = Relu(last) y = MatMul(m, w) }""",
    "scan": """(float[n,8] x, bool c) => (float[n,8] y) {
        h = MatMul(x, w)
        zero = Constant<value = float[8] {0, 0, 0, 0, 0, 0, 0, 0}>()
        last, s = Scan <num_scan_inputs = 1, body = step (float[8] state, float[8] row) => (float[8] next, float[8] o) {
            k = Add(state, row) next = Tanh(k) o = Mul(next, next) }>(zero, h)
        y = MatMul(s, w) }""",
}


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("name", BODIES)
def test_bodies_convert_below_fp32(name, precision, tmp_path):
    model = models.model(BODIES[name], {"w": random(8, 8, seed=1, scale=0.4)})
    onnx.save(model, tmp_path / "model.onnx")
    for seed in range(4):
        np.savez(tmp_path / f"{seed}.npz", x=random(4, 8, seed=seed), c=np.array(seed % 2 == 0))
        feed = dict(np.load(tmp_path / f"{seed}.npz"))
        [expected] = ReferenceEvaluator(model).run(None, feed)
        np.testing.assert_allclose(models.run(model, feed)["y"], expected, rtol=1e-4, atol=1e-5)
    build = BuildConfig(precision=precision, options=OnnxRuntimeOptions(tactics=()))
    check = CheckConfig(data=str(tmp_path), latency_runs=0, plots="never")

    result = convert(
        tmp_path / "model.onnx",
        ConvertConfig(build=build, check=check, calibration_data=str(tmp_path) if precision == "int8" else None),
        tracker=MemoryTracker(),
    )

    assert result.verdict == "good", result.page()


def test_random_ids_and_words_are_known():
    assert accepted_inputs(MODELS["strings in"]()).words == {"x": ("cat", "dog")}
    feeds = accepted_inputs(tokens())
    assert feeds.ranges == {"input_ids": (0, 49), "position_ids": (0, 2), "attention_mask": (1, 1)}

    [feed] = CheckConfig(iterations=1).open_for(Model.from_proto(tokens()))
    ids = {name: set(array.flat) for name, array in feed.items()}
    assert len(ids["input_ids"]) > 15 and max(ids["input_ids"]) > 25 and ids["position_ids"] == {0, 1, 2}
    assert ids["attention_mask"] == {1}


def test_what_cannot_be_fed_or_kept_says_so(tmp_path: Path):
    optional = h.make_value_info("o", h.make_optional_type_proto(h.make_tensor_type_proto(1, ["n", 4])))
    sequence = h.make_tensor_sequence_value_info("x", 1, None)
    cases = {
        "OptionalGetElement": proto([node("Optional", ["x"], ["o"])], [vi("x", 1, ["n", 4])], [optional]),
        "make it inside": proto([node("ConcatFromSequence", ["x"], ["y"], axis=0)], [sequence], [vi("y", 1, None)]),
    }
    for advice, model in cases.items():
        onnx.save(model, tmp_path / "model.onnx")
        with pytest.raises(errors.TrtopsError, match=advice):
            convert(tmp_path / "model.onnx", tracker=MemoryTracker())
