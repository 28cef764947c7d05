"""Types and shapes inferred: what ONNX itself gets wrong is seen to."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from tests import models
from trtops.backend.onnx import shapes


def test_what_reads_a_sparse_weight_has_a_shape() -> None:
    proto = models.model("(float[n,4] x) => (float[n,6] y) { a = MatMul(x, w) y = Relu(a) }")
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 5]), "w_indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 6]))

    shapes.infer_shapes(proto, strict=True)

    [made] = [value for value in proto.graph.value_info if value.name == "a"]
    assert [dim.dim_param or dim.dim_value for dim in made.type.tensor_type.shape.dim] == ["n", 6]
    assert len(proto.graph.sparse_initializer) == 1 and not proto.graph.initializer
