"""Zeros in place of weights: only where no value of a weight can decide what fails."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests import models
from trtops.backend.onnx import stand_ins

W = {"w": np.ones((4, 4), np.float32)}


def suffices(body: str, weights: dict[str, np.ndarray] | None = None) -> bool:
    """Whether ``w`` may be zeros in a model with this body."""
    proto = models.model(f"(float[4,4] x, int64[2] i, bool[4,4] b) => (float[a,c] y) {{ {body} }}", weights or W)
    return stand_ins.suffice(proto, {"w"})


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, w)",
        "m = MatMul(x, w) s = Shape(m) t = Cast<to = 1>(s) n = Div(t, t) k = Cast<to = 7>(n) y = Reshape(x, k)",
        "g = Gather(w, i) y = Relu(g)",
        "y = Where(b, w, x)",
        "m = Greater(x, x) n = NonZero(m) y = Mul(x, w)",
        "h = Cast<to = 10>(w) y = Cast<to = 1>(h)",
        "y = Reshape(w, i)",
        "y = Div(x, w)",
    ],
)
def test_arithmetic_does_not_depend_on_values(body: str) -> None:
    assert suffices(body)


@pytest.mark.parametrize(
    "body",
    [
        "n = NonZero(w) y = Cast<to = 1>(n)",
        "m = MatMul(x, w) k = Cast<to = 7>(m) y = Reshape(x, k)",
        "m = Relu(w) k = ArgMax(m) y = Gather(x, k)",
        "y, j = TopK(w, i)",
        "g = Greater(x, w) y = Compress(x, g)",
        "y = custom.Frobnicate(x, w)",
        "y = Resize(x, e, w)",
        "p, j = MaxPool<kernel_shape = [1]>(w) y = MaxUnpool(x, j)",
        "a = Identity(w) c = ReduceMax<keepdims = 0>(x) f = Cast<to = 9>(c) y = If(f) <then_branch = t () => (z) { z = Relu(a) }, "
        "else_branch = e () => (z) { z = Relu(x) }>",
    ],
)
def test_indices_sizes_conditions_bodies_and_operators_unknown_do(body: str) -> None:
    assert not suffices(body)


def test_an_operator_that_the_model_defines_itself_may_be_anything() -> None:
    proto = models.model("(float[4,4] x) => (float[4,4] y) { y = MatMul(x, w) }", W)
    proto.functions.add(name="MatMul", domain="")
    assert not stand_ins.suffice(proto, {"w"})


def test_integers_may_be_weights_but_are_not_divided_by() -> None:
    weights = {"w": np.ones((4, 4), np.int8), "s": np.array(0.1, np.float32)}
    assert suffices("d = DequantizeLinear(w, s) y = MatMul(x, d)", weights)
    assert suffices("d = DequantizeLinear(w, s) y = Div(x, d)", weights)
    assert not suffices("t = Transpose(w) y = Div(x, t)", weights)
    assert not suffices("q = QuantizeLinear(w, s) t = Transpose(q) y = Div(x, t)", {**W, "s": weights["s"]})


def test_an_input_that_is_a_weight_as_well_must_be_declared_like_it() -> None:
    proto = models.model("(float[4,4] x) => (float[4,4] y) { y = MatMul(x, w) }", W)
    value = onnx.helper.make_tensor_value_info("w", 1, [4, 4])
    proto.graph.input.append(value)
    assert stand_ins.suffice(proto, {"w"})
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 5
    assert not stand_ins.suffice(proto, {"w"})
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "n"
    assert not stand_ins.suffice(proto, {"w"})


def test_zeros_have_the_types_and_shapes_of_the_weights() -> None:
    arrays = {"a": np.ones((3, 2), np.float32), "b": np.ones(7, np.float32), "c": np.ones((2, 2), np.float16)}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]

    found = stand_ins.zeros(tensors)

    assert {name: (v.dtype, v.shape) for name, v in found.items()} == {n: (v.dtype, v.shape) for n, v in arrays.items()}
    assert all(not v.any() and v.flags.c_contiguous for v in found.values())
