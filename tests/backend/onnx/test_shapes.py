"""Inferred types and shapes, and the corrections of ONNX's own inference."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests import models
from trtops import errors
from trtops.backend.onnx import shapes
from trtops.backend.onnx.model import can_propagate_values


def test_computed_shapes_of_deep_models_are_known() -> None:
    """Sizes must not add up from block to block: a Gather has the length of its indices, a Shape the rank."""
    # As exporters write it: a Reshape, whose target is computed from its input's shape.
    lines = " ".join(
        f"s{i} = Shape(x{i}) "
        f"g{i} = Gather<axis=0>(s{i}, first) u{i} = Unsqueeze(g{i}, zero) "
        f"h{i} = Gather<axis=0>(s{i}, second) v{i} = Unsqueeze(h{i}, zero) "
        f"t{i} = Concat<axis=0>(u{i}, v{i}, width) x{i + 1} = Reshape(x{i}, t{i})"
        for i in range(40)
    )
    constants = "zero = Constant<value_ints=[0]>() width = Constant<value_ints=[32]>()"
    numbers = {"first": np.array(0), "second": np.array(1)}
    proto = models.model(f"(float[1,16,32] x0) => (float[1,16,32] x40) {{ {constants} {lines} }}", numbers)

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


def test_nodes_without_inputs_are_accepted() -> None:
    for op in ("Unsqueeze", "Gather", "Reshape", "Expand", "Shape", "Concat", "Constant", "ConstantOfShape"):
        nodes, outputs = [helper.make_node(op, [], ["y"])], [helper.make_empty_tensor_value_info("y")]
        assert can_propagate_values(helper.make_model(helper.make_graph(nodes, "g", [], outputs))), op


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
