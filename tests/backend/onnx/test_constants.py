"""Constant nodes in each of the ways to write them."""

from __future__ import annotations

import numpy as np
import pytest

from tests import models
from trtops.backend.onnx import constants, walk

BARE = """(float[2,3] x) => (float[3,2] y) {
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


def test_plain_numbers_become_tensors():
    proto = models.model(BARE)
    before = models.run(proto, {"x": models.random(2, 3)})["y"]
    nodes = [(node.op_type, node.name, list(node.output)) for node in walk.nodes(proto)]
    assert constants.spell_out(proto)
    assert [(node.op_type, node.name, list(node.output)) for node in walk.nodes(proto)] == nodes
    assert {a.name for node in walk.nodes(proto) if node.op_type == "Constant" for a in node.attribute} == {"value"}
    np.testing.assert_array_equal(models.run(proto, {"x": models.random(2, 3)})["y"], before)
    assert not constants.spell_out(proto)


@pytest.mark.parametrize(
    ("written", "dtype", "value"),
    [
        ("value_int = -7", np.int64, -7),
        ("value_ints = [1, 2]", np.int64, [1, 2]),
        ("value_float = 0.5", np.float32, 0.5),
        ("value_floats = [0.5, 1.5]", np.float32, [0.5, 1.5]),
        ("value = int32[2] {3, 4}", np.int32, [3, 4]),
    ],
)
def test_constant_tensors_have_value_and_name(written, dtype, value):
    proto = models.model(f"(float[1] x) => (float[1] y) {{ c = Constant<{written}>()  y = Identity(x) }}")
    tensor = constants.constant_tensor(proto.graph.node[0])
    array = models.numpy_helper.to_array(tensor)
    assert tensor.name == "c"
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, value)
