"""Inferred types and shapes, and the corrections of ONNX's own inference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests import models
from trtops import errors
from trtops.backend.onnx import shapes
from trtops.backend.onnx.model import can_propagate_values


def blocks(count: int) -> onnx.ModelProto:
    """Blocks as exporters write them: a bias, and a Reshape with a target computed from its input's shape."""
    lines = []
    for i in range(count):
        size_of = [
            f"k{i}_{axis} = Constant<value_int={axis}>() g{i}_{axis} = Gather<axis=0>(s{i}, k{i}_{axis}) "
            f"u{i}_{axis} = Unsqueeze(g{i}_{axis}, zero)"
            for axis in (0, 1)
        ]
        lines.append(
            f"a{i} = MatMul(x{i}, w) b{i} = Add(a{i}, c) s{i} = Shape(b{i}) {' '.join(size_of)} "
            f"t{i} = Concat<axis=0>(u{i}_0, u{i}_1, width) x{i + 1} = Reshape(b{i}, t{i})"
        )
    constants = "zero = Constant<value_ints=[0]>() width = Constant<value_ints=[32]>()"
    proto = models.model(f"(float[1,16,32] x0) => (float[1,16,32] x{count}) {{ {constants} {' '.join(lines)} }}")
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in {"w": (32, 32), "c": 32}.items()
    )
    return proto


def test_computed_shapes_of_deep_models_are_known() -> None:
    """Sizes must not add up from block to block: a Gather has the length of its indices, a Shape the rank."""
    proto = blocks(40)

    shapes.infer_shapes(proto)

    known = {value.name: value.type.tensor_type.shape.dim for value in proto.graph.value_info}
    assert [dim.dim_value for dim in known["x39"]] == [1, 16, 32]


@pytest.mark.parametrize(
    "first", ["t0 = Shape(x)", "t0 = Abs(x)", "t0 = Gather(x, x)", "t0 = Constant<value_ints=[1]>()"]
)
def test_repeatedly_joined_vectors_are_not_propagated(first: str) -> None:
    joined = " ".join(f"t{i + 1} = Concat<axis=0>(t{i}, t{i})" for i in range(20))
    proto = models.model(f"(int64[4] x) => (int64[n] y) {{ {first} {joined} y = Identity(t20) }}")

    assert not can_propagate_values(proto)


@pytest.mark.parametrize(
    "op", ["Unsqueeze", "Gather", "Reshape", "Expand", "Shape", "Concat", "Constant", "ConstantOfShape"]
)
def test_nodes_without_inputs_are_accepted(op: str) -> None:
    graph = helper.make_graph([helper.make_node(op, [], ["y"])], "g", [], [helper.make_empty_tensor_value_info("y")])

    assert can_propagate_values(helper.make_model(graph))


def test_long_vectors_of_functions_are_not_propagated() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[9223372036854775807] x) => (float[n] y) { y = own.twice(x) }
    <domain: "own", opset_import: ["" : 17]> twice (v) => (r) { r = Add(v, v) }"""

    assert not can_propagate_values(onnx.parser.parse_model(text))


def test_unused_recursive_functions_are_refused() -> None:
    proto = models.model("(float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.opset_import.add(domain="circle", version=1)
    for name, other in (("f", "g"), ("g", "f")):
        call = helper.make_node(other, ["a"], ["b"], domain="circle")
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("circle", 1)]
        proto.functions.append(helper.make_function("circle", name, ["a"], ["b"], [call], opsets))

    with pytest.raises(errors.InvalidModelError, match="Shape inference failed"):
        shapes.infer_shapes(proto)
