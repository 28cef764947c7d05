"""Shapes taken from running a model."""

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors
from trtops.ops.model.observed_shapes import with_observed_shapes


def shapes_of(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    graph = proto.graph
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }


def test_data_dependent_shapes_are_observed() -> None:
    proto = models.model("(float[n] x) => (int64[1,k] y) { a = Abs(x)\n y = NonZero(a) }")

    found = with_observed_shapes(proto, [{"x": np.array([0, 2, 0, 3], np.float32)}])
    assert shapes_of(found) == {"x": (4,), "a": (4,), "y": (1, 2)}
    assert "dim_value" not in str(proto.graph.input[0])  # the model itself is as it was


def test_models_with_sub_graphs_stay_valid() -> None:
    for case in (models.branch(), models.loop(), models.transformer()):
        proto = with_observed_shapes(case.proto, [case.feed])
        onnx.checker.check_model(proto)
        assert all(dim > 0 for shape in shapes_of(proto).values() for dim in shape)


def test_other_data_is_refused() -> None:
    with pytest.raises(errors.InputError):
        with_observed_shapes(models.identity().proto, [{"other": np.zeros(3, np.float32)}])
