"""Operators that pass elements on, compared with what ONNX's reference implementation computes."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests import models
from trtops.backend.onnx import operators

# A call of each operator on x, of shape (1, 4, 2, 6), with the weights below.
CALLS = {
    "Cast": "Cast<to = 1>(x)",
    "CastLike": "CastLike(x, x)",
    "Identity": "Identity(x)",
    "Flatten": "Flatten(x)",
    "Reshape": "Reshape(x, flat)",
    "Squeeze": "Squeeze(x, zero)",
    "Unsqueeze": "Unsqueeze(x, zero)",
    "DepthToSpace": "DepthToSpace<blocksize = 2>(x)",
    "Expand": "Expand(x, wide)",
    "ReverseSequence": "ReverseSequence<batch_axis = 0, time_axis = 1>(x, four)",
    "SpaceToDepth": "SpaceToDepth<blocksize = 2>(x)",
    "Tile": "Tile(x, twice)",
    "Transpose": "Transpose<perm = [0, 2, 3, 1]>(x)",
    "Compress": "Compress(x, chosen)",
    "Gather": "Gather<axis = 3>(x, four)",
    "GatherElements": "GatherElements<axis = 3>(x, places)",
    "GatherND": "GatherND(x, place)",
    "Slice": "Slice(x, zero, four, three)",
    "Split": "Split<axis = 3, num_outputs = 2>(x)",
    "Concat": "Concat<axis = 1>(x, x)",
}
WEIGHTS = {
    "flat": np.array([-1]), "zero": np.array([0]), "three": np.array([3]), "four": np.array([4]),
    "wide": np.array([3, 1, 1, 1, 1]), "twice": np.array([1, 2, 1, 1]), "chosen": np.array([True, False, True]),
    "places": np.zeros((1, 4, 2, 6), np.int64), "place": np.array([[0, 3, 1]]),
}  # fmt: skip


@pytest.mark.parametrize("op", sorted(operators.PASS_ON | operators.CASTS))
def test_elements_pass_as_the_table_says(op: str) -> None:
    output = "y, rest" if op == "Split" else "y"
    proto = models.model(f"(float[1,4,2,6] x) => (float[n] y) {{ {output} = {CALLS[op]} }}", WEIGHTS, opset=18)
    x = np.arange(48, dtype=np.float32).reshape(1, 4, 2, 6)
    [y] = ReferenceEvaluator(proto).run(None, {"x": x})

    assert np.isin(y, x).all()
    assert (op in operators.KEEP_RANGE | operators.CASTS | {"Concat"}) == np.isin(x, y).all()
    assert (op in operators.KEEP_ORDER | operators.CASTS) == np.array_equal(x.reshape(-1), y.reshape(-1))
    assert (op in operators.KEEP_PLACES) == np.array_equal(x, y)
