"""Constant folding: what folds, what stays, and that results do not change."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests import models
from tests.models import run
from trtops import errors
from trtops.backend.onnx import fold, fold_constants, modify_outputs, shapes, walk, with_onnxruntime
from trtops.backend.onnx.model import Model


def ops(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("all_outputs", [False, True])
def test_folded_models_are_valid_and_equal(make: Callable[[], models.Case], all_outputs: bool) -> None:
    case = make()
    proto = modify_outputs(case.proto, "mark-all") if all_outputs else case.proto

    folded = fold_constants(proto)

    onnx.checker.check_model(folded, full_check=True)
    assert Model.from_proto(folded).info.inputs == Model.from_proto(proto).info.inputs
    before, after = run(proto, case.feed), run(folded, case.feed)
    assert list(before) == list(after)
    for name in before:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6, atol=1e-6)


def test_shapes_and_arithmetic_become_weights() -> None:
    folded = fold_constants(models.foldable().proto)
    assert ops(folded) == ["Reshape", "Mul"]
    weights = {t.name: numpy_helper.to_array(t).tolist() for t in folded.graph.initializer}
    assert weights == {"target": [2, -1], "double": 3.0}
    assert "Shape" in ops(fold_constants(models.foldable().proto, fold_shapes=False))
    constant = models.model("() => (float[2] y) { y = Neg(w) }", {"w": np.ones(2, np.float32)})
    assert fold.fold_constants(constant) == 1 and ops(constant) == ["Constant"]
    undeclared = models.model("(float[2,3] x) => (int64[2] n) { t = Transpose(x)\n u = Relu(t)\n n = Shape(u) }")
    assert "Shape" in ops(fold_constants(undeclared, do_shape_inference=False))


def test_known_parts_of_dynamic_shapes_fold() -> None:
    proto = models.model(
        """(float[batch,16,8] x) => (float[a,b] y) {
            s = Shape(x)
            tail = Slice(s, one, three, zero)
            product = ReduceProd<keepdims = 1>(tail)
            target = Concat<axis = 0>(minus, product)
            y = Reshape(x, target)
        }""",
        {"zero": np.array([0]), "one": np.array([1]), "three": np.array([3]), "minus": np.array([-1])},
    )
    folded = fold_constants(proto)
    assert ops(folded) == ["Reshape"]
    assert numpy_helper.to_array(folded.graph.initializer[0]).tolist() == [-1, 128]

    text = "(float[batch,16] x) => (int64 n) { s = Shape(x)\n n = Gather(s, zero) }"
    assert ops(fold_constants(models.model(text, {"zero": np.array(0)}))) == ["Shape", "Gather"]


@pytest.mark.parametrize(
    ("nodes", "sessions"),
    [
        ("a = Div(tail, two) b = Mul(a, pair) c = Add(b, one) y = Sub(c, two)", 0),
        ("a = Unsqueeze(tail, zero) b = Squeeze(a, zero) c = Unsqueeze(b, one) y = Reshape(c, all)", 0),
        ("a = Gather(s, last) b = Cast<to = 6>(a) c = Cast<to = 7>(b) y = Concat<axis = 0>(tail, c, pair)", 0),
        ("a = Slice(s, last, zero, zero, last) y = Slice(a, zero, pair_end)", 0),
        ("a = Sub(zero, tail) y = Div(a, two)", 1),  # -7 / 2 is -3
        ("a = Mul(tail, large) b = Cast<to = 6>(a) y = Cast<to = 7>(b)", 1),  # overflows
        ("c = Cast<to = 1>(tail) d = Div(c, halves) y = Cast<to = 7>(d)", 1),
    ],
)  # fmt: skip
def test_sizes_are_computed_as_by_sessions(nodes: str, sessions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"zero": [0], "one": [1], "two": [2], "three": [3], "all": [-1], "last": [-1], "pair": [5, 3]}
    values |= {"pair_end": [2], "large": [1 << 28]}
    weights = {name: np.array(value) for name, value in values.items()} | {"halves": np.array([0.5], np.float32)}
    text = f"(float[batch,16,7] x) => (int64[n] y) {{ s = Shape(x) tail = Slice(s, one, three) {nodes} }}"
    proto = models.model(text, weights)
    expected = run(proto, {"x": np.zeros((3, 16, 7), np.float32)})["y"]
    calls = []
    evaluate = with_onnxruntime.evaluate
    monkeypatch.setattr(with_onnxruntime, "evaluate", lambda *args: calls.append(args) or evaluate(*args))

    folded = fold_constants(proto)

    assert (ops(folded), len(calls)) == (["Constant"], sessions)
    np.testing.assert_array_equal(run(folded, {"x": np.zeros((3, 16, 7), np.float32)})["y"], expected)


def test_scales_reveal_shapes_to_the_next_pass() -> None:
    text = """(float[1,1,2,3] x) => (int64[4] y) {
        scales = Add(ones, ones) r = Resize<mode = "nearest">(x, , scales) y = Shape(r)
    }"""
    assert ops(fold_constants(models.model(text, {"ones": np.ones(4, np.float32)}))) == ["Constant"]


def test_passes_can_be_limited() -> None:
    # The target of the Reshape, and so the shape after it, is known only after one pass.
    text = "(float[2,6] x) => (int64[2] n) { t = Add(h, h) r = Reshape(x, t) n = Shape(r) }"
    proto = models.model(text, {"h": np.array([1, 3])})
    assert ops(fold_constants(proto)) == ["Constant"]
    assert len(fold_constants(proto, num_passes=0).graph.node) == 3


def test_large_random_and_quantizing_results_stay() -> None:
    text = "(float[1000] x) => (float[1000] y) { k = Add(one, one) wide = Expand(k, shape) y = Mul(x, wide) }"
    proto = models.model(text, {"one": np.float32(1), "shape": np.array([1000])})
    assert ops(fold_constants(proto)) == ["Mul"]
    assert ops(fold_constants(proto, size_threshold=3999)) == ["Expand", "Mul"]
    assert ops(fold_constants(proto, size_threshold=4000)) == ["Mul"]

    random = models.model("(float[2] x) => (float[2] y) { r = RandomNormal<shape = [2]>()\n y = Add(x, r) }")
    assert ops(fold_constants(random)) == ["RandomNormal", "Add"]
    assert ops(fold_constants(models.qdq_net().proto)).count("DequantizeLinear") == 2


def test_nodes_without_a_kernel_stay() -> None:
    proto = models.model(
        """(float[2] x) => (float[2] y) {
            a = Add(k, k)
            b = com.microsoft.NoSuchThing(a)
            d = Neg(a)
            e = Add(x, b)
            y = Add(e, d)
        }""",
        {"k": np.ones(2, np.float32)},
    )
    assert ops(fold_constants(proto)) == ["NoSuchThing", "Add", "Add"]
    with pytest.raises(errors.InferenceError):
        fold_constants(proto, error_ok=False)


def test_branches_with_known_conditions_are_inlined() -> None:
    case = models.branch()
    for value in (True, False):
        proto = models.branch().proto
        del proto.graph.input[1]
        proto.graph.initializer.append(numpy_helper.from_array(np.array(value), "flag"))
        # The bodies' names are used in the graph around them as well, and must not collide.
        proto.graph.node.append(onnx.helper.make_node("Relu", ["x"], ["p"]))
        proto.graph.node.append(onnx.helper.make_node("Add", ["p", "y"], ["total"]))
        proto.graph.output.append(onnx.helper.make_tensor_value_info("total", 1, [2, 3]))

        folded = fold_constants(proto)

        assert "If" not in ops(folded)
        x, w = case.feed["x"], models.random(2, 3, seed=1)
        y = np.abs(x * w + w if value else x * w - w)
        out = run(folded, {"x": x})
        np.testing.assert_allclose(out["y"], y, rtol=1e-6)
        np.testing.assert_allclose(out["total"], y + np.maximum(x, 0), rtol=1e-6)


CHAINS = {
    # The target of each Reshape is known only after the one before: from sizes, or from what a session computes.
    "sizes": """s{i} = Shape(t{i}) h{i} = Slice(s{i}, zero, two) c{i} = Concat<axis = 0>(h{i}, width)
        r{i} = Reshape(t{i}, c{i})""",
    "values": """s{i} = Shape(t{i}) f{i} = Cast<to = 1>(s{i}) d{i} = Mul(f{i}, one) c{i} = Cast<to = 7>(d{i})
        r{i} = Reshape(t{i}, c{i})""",
    "branches": """s{i} = Shape(t{i}) n{i} = Gather(s{i}, first) e{i} = Equal(n{i}, twice) r{i} = If(e{i}) <
        then_branch = yes () => (float[k] a) { r = Neg(t{i}) u = Neg(r) a = Identity(u) },
        else_branch = no () => (float b) { b = ReduceSum<keepdims = 0>(t{i}) }
    >""",
}  # fmt: skip


@pytest.mark.parametrize("block", CHAINS.values(), ids=CHAINS)
def test_chain_folds_in_few_passes(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, tensor = [], "x"
    for i in range(12):
        nodes.append(f"t{i} = Tanh({tensor}) " + block.replace("{i}", str(i)))
        tensor = f"r{i}"
    values = {"zero": [0], "two": [2], "width": [4], "first": 0, "twice": 2}
    weights = {name: np.array(value) for name, value in values.items()} | {"one": np.float32(1)}
    proto = models.model(f"(float[2,8,4] x) => (float[a,b,c] y) {{ {' '.join(nodes)} y = Relu({tensor}) }}", weights)
    inferences = []
    infer_shapes = shapes.infer_shapes
    monkeypatch.setattr(
        shapes, "infer_shapes", lambda *args, **options: inferences.append(infer_shapes(*args, **options))
    )
    feed = {"x": models.random(2, 8, 4)}
    expected = run(proto, feed)["y"]

    folded = fold_constants(proto)

    assert {*ops(folded)} <= {"Tanh", "Reshape", "Neg", "Identity", "Relu"}
    assert len(inferences) <= 3
    np.testing.assert_allclose(run(folded, feed)["y"], expected, rtol=1e-6)


def test_names_of_bodies_fold_by_scope() -> None:
    # Both branches and, later, the main graph have their own k and t, and one branch draws random numbers.
    proto = models.model(
        """(float[2] x, bool flag) => (float[2] y) {
            z = If(flag) <
                then_branch = yes () => (float[2] t) { k = Add(one, one) t = Mul(x, k) },
                else_branch = no () => (float[2] t) { k = Sub(one, three) u = Add(k, k) t = Mul(x, u) }
            >
            k = Add(three, three)
            t = Mul(z, k)
            drawn = If(always) <
                then_branch = yes2 () => (float[2] r) { r = RandomNormal<shape = [2]>() },
                else_branch = no2 () => (float[2] r) { r = Identity(one) }
            >
            none = Mul(drawn, nil)
            y = Add(t, none)
        }""",
        {"one": np.ones(2, np.float32), "three": np.full(2, 3, np.float32), "nil": np.zeros(2, np.float32)}
        | {"always": np.array(True)},
    )

    folded = fold_constants(proto)

    assert [[node.op_type for node in graph.node] for graph in walk.graphs(folded.graph)] == [
        ["If", "Mul", "RandomNormal", "Mul", "Add"], ["Mul"], ["Mul"],
    ]  # fmt: skip
    for flag, factor in ((True, 12), (False, -24)):
        feed = {"x": np.ones(2, np.float32), "flag": np.array(flag)}
        np.testing.assert_array_equal(run(folded, feed)["y"], np.full(2, factor, np.float32))


def test_branches_that_sizes_decide_stay() -> None:
    # ONNX Runtime's symbolic inference takes n == 1 for false, and the rank of one branch for both.
    text = """(float[batch,n] x) => (float[p,q] y, int64[one] rank) {
        sizes = Shape(x) n = Gather(sizes, axis) halves = Div(n, two) cut = Slice(x, zero, halves, axis)
        cut_sizes = Shape(cut) width = Gather(cut_sizes, axis) same = Equal(width, axis)
        z = If(same) <
            then_branch = squeeze () => (float[m] a) { a = Squeeze(cut, axis) },
            else_branch = keep () => (float[m,k] b) { b = Identity(cut) }
        >
        left = Shape(z) rank = Shape(left) target = Concat<axis = 0>(left, axis) wide = Reshape(z, target)
        y = Flatten<axis = 1>(wide)
    }"""
    weights = {"axis": np.array([1]), "two": np.array([2]), "zero": np.array([0])}
    proto = models.model(text, weights)

    folded = fold_constants(proto)

    assert "If" in ops(folded)
    for width in (2, 6):
        feed = {"x": models.random(3, width)}
        for name, array in run(proto, feed).items():
            np.testing.assert_array_equal(run(folded, feed)[name], array)


def test_bodies_are_folded() -> None:
    case = models.branch()
    body = case.proto.graph.node[1].attribute[0].g
    body.node.insert(0, onnx.helper.make_node("Add", ["w", "w"], ["k"]))
    body.node[1].input[1] = "k"

    folded = fold_constants(case.proto)

    assert [[n.op_type for n in a.g.node] for a in folded.graph.node[1].attribute] == [["Add"], ["Sub"]]
    np.testing.assert_allclose(run(folded, case.feed)["y"], run(case.proto, case.feed)["y"], rtol=1e-6)


def test_plain_numbers_of_constants_become_tensors() -> None:
    text = """(float[2,3] x) => (float[3,2] y) {
        shape = Constant<value_ints = [3, -1]>()
        flat = Reshape(x, shape)
        scale = Constant<value_float = 2.5>()
        scaled = Mul(flat, scale)
        row = Constant<value_floats = [1.0, -1.0]>()
        shifted = Add(scaled, row)
        go = Constant<value = bool {1}>()
        y = If(go) <
            then_branch = yes () => (float[3,2] a) { axis = Constant<value_int = 1>()  a = CumSum(shifted, axis) },
            else_branch = no () => (float[3,2] b) { b = Identity(shifted) }
        >
    }"""
    proto, same = models.model(text), models.model(text)
    feed = {"x": models.random(2, 3)}
    assert walk.spell_out(proto) and not walk.spell_out(proto)
    for node, before in zip(walk.nodes(proto), walk.nodes(same), strict=True):
        assert (node.op_type, node.output) == (before.op_type, before.output)
        assert node.op_type != "Constant" or [a.name for a in node.attribute] == ["value"]
    np.testing.assert_array_equal(run(proto, feed)["y"], run(same, feed)["y"])
    same.graph.node[0].attribute[0].ref_attr_name = "axes"  # an attribute of the function that the node belongs to
    assert walk.constant_tensor(same.graph.node[0]) is None
