"""Constant folding: what folds, what stays, and that results do not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests import models
from tests.models import run
from trtops import errors
from trtops.backend.onnx import fold_constants, modify_outputs
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


@pytest.mark.parity
@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
def test_as_many_nodes_fold_as_in_polygraphy(
    make: Callable[[], models.Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # its shape inference may leave a file in the working folder
    from polygraphy.backend.onnx import fold_constants as theirs
    from polygraphy.logger import G_LOGGER

    with G_LOGGER.verbosity():
        its = theirs(make().proto, copy=True)

    assert len(fold_constants(make().proto).graph.node) <= len(its.graph.node)


def test_shapes_and_arithmetic_become_weights() -> None:
    folded = fold_constants(models.foldable().proto)
    assert ops(folded) == ["Reshape", "Mul"]
    weights = {t.name: numpy_helper.to_array(t).tolist() for t in folded.graph.initializer}
    assert weights == {"target": [2, -1], "double": 3.0}
    assert "Shape" in ops(fold_constants(models.foldable().proto, fold_shapes=False))
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


def test_passes_can_be_limited() -> None:
    # The target of the Reshape, and so the shape after it, is known only after one pass.
    text = "(float[2,6] x) => (int64[2] n) { t = Add(h, h) r = Reshape(x, t) n = Shape(r) }"
    proto = models.model(text, {"h": np.array([1, 3])})

    assert ops(fold_constants(proto)) == ["Constant"]
    assert len(fold_constants(proto, num_passes=0).graph.node) == 3


def test_large_results_stay() -> None:
    proto = models.model(
        """(float[1000] x) => (float[1000] y) {
            k = Add(one, one)
            wide = Expand(k, shape)
            y = Mul(x, wide)
        }""",
        {"one": np.float32(1), "shape": np.array([1000])},
    )

    assert ops(fold_constants(proto)) == ["Mul"]
    assert ops(fold_constants(proto, size_threshold=3999)) == ["Expand", "Mul"]
    assert ops(fold_constants(proto, size_threshold=4000)) == ["Mul"]


def test_random_and_quantizing_nodes_stay() -> None:
    random = models.model("(float[2] x) => (float[2] y) { r = RandomNormal<shape = [2]>()\n y = Add(x, r) }")

    assert ops(fold_constants(random)) == ["RandomNormal", "Add"]
    assert ops(fold_constants(models.qdq_net().proto)).count("DequantizeLinear") == 2


def test_nodes_without_a_kernel_stay() -> None:
    proto = models.model(
        """(float[2] x) => (float[2] y) {
            a = Add(k, k)
            b = com.microsoft.NoSuchThing(a)
            c = Mul(k, k)
            d = Neg(c)
            e = Add(x, b)
            y = Add(e, d)
        }""",
        {"k": np.ones(2, np.float32)},
    )

    folded = fold_constants(proto)

    assert ops(folded) == ["NoSuchThing", "Add", "Add"]
    with pytest.raises(errors.InferenceError):
        fold_constants(proto, error_ok=False)


def test_branches_with_known_conditions_are_inlined() -> None:
    case = models.branch()
    for value in (True, False):
        proto = models.branch().proto
        kept = [v for v in proto.graph.input if v.name != "flag"]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
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


def test_bodies_are_folded() -> None:
    proto = models.model(
        """(float[2,3] x, bool flag) => (float[2,3] y) {
            y = If(flag) <
                then_branch = yes () => (float[2,3] p) { k = Add(w, w)\n p = Add(x, k) },
                else_branch = no () => (float[2,3] q) { q = Sub(x, w) }
            >
        }""",
        {"w": models.random(2, 3, seed=1)},
    )

    folded = fold_constants(proto)

    bodies = {a.name: [n.op_type for n in a.g.node] for a in folded.graph.node[0].attribute}
    assert bodies == {"then_branch": ["Add"], "else_branch": ["Sub"]}
    x, w = models.random(2, 3), models.random(2, 3, seed=1)
    np.testing.assert_allclose(run(folded, {"x": x, "flag": np.array(True)})["y"], x + 2 * w, rtol=1e-6)
