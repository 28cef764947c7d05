"""Constant nodes in each of the ways to write them."""

from __future__ import annotations

import numpy as np

from tests import models
from trtops.backend.onnx import walk

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


def test_references_to_attributes_of_functions_stay():
    node = models.model(
        "(float[1] x) => (float[1] y) { c = Constant<value_ints = [1]>()  y = Identity(x) }"
    ).graph.node[0]
    node.attribute[0].ref_attr_name = "axes"

    assert walk.constant_tensor(node) is None


def test_plain_numbers_become_tensors():
    proto = models.model(BARE)
    before = models.run(proto, {"x": models.random(2, 3)})["y"]
    nodes = [(node.op_type, node.name, list(node.output)) for node in walk.nodes(proto)]
    assert walk.spell_out(proto)
    assert [(node.op_type, node.name, list(node.output)) for node in walk.nodes(proto)] == nodes
    assert {a.name for node in walk.nodes(proto) if node.op_type == "Constant" for a in node.attribute} == {"value"}
    np.testing.assert_array_equal(models.run(proto, {"x": models.random(2, 3)})["y"], before)
    assert not walk.spell_out(proto)
