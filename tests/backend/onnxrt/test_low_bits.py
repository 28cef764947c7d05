"""Models with 4-bit, 8-bit and 16-bit types, as exporters write them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import models
from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import convert_to_fp16
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.reference import reference_outputs
from trtops.spec import BuildConfig

FEED = {"x": models.random(3, 8)}


def of_nodes(nodes: list[onnx.NodeProto], weights: list[TensorProto], opset: int) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def float8() -> onnx.ModelProto:
    """Input and weight rounded to 8-bit floating point."""
    pairs = [
        helper.make_node(op, [source, "scale", "zero"], [target])
        for name in ("x", "w")
        for op, source, target in (
            ("QuantizeLinear", name, f"{name}_q"),
            ("DequantizeLinear", f"{name}_q", f"{name}_d"),
        )
    ]
    weights = [
        numpy_helper.from_array(np.float32(0.01), "scale"),
        helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0]),
        numpy_helper.from_array(models.random(8, 4, seed=1), "w"),
    ]
    return of_nodes([*pairs, helper.make_node("MatMul", ["x_d", "w_d"], ["y"])], weights, 19)


def int4() -> onnx.ModelProto:
    """A weight in 4 bits with a scale for each block of 4."""
    values = np.random.default_rng(0).integers(-8, 8, 32)
    weights = [
        helper.make_tensor("w_q", TensorProto.INT4, [8, 4], values),
        numpy_helper.from_array(np.full((2, 4), 0.1, np.float32), "scale"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w_q", "scale"], ["w"], axis=0, block_size=4),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    return of_nodes(nodes, weights, 21)


@pytest.mark.parametrize("make", [float8, int4])
def test_low_bit_models_are_built(make) -> None:  # type: ignore[no-untyped-def]
    backend, proto = OnnxRuntimeBackend(), make()
    build = backend.build(Model.from_proto(proto), BuildConfig())
    with backend.runner(build.engine) as runner:
        found = runner.infer(FEED)["y"]
    np.testing.assert_allclose(found, reference_outputs(proto, [FEED])[0]["y"], rtol=1e-5, atol=1e-5)


def test_int8_of_fp16_model_is_refused() -> None:
    case = models.conv_net()
    model = Model.from_proto(convert_to_fp16(case.proto))
    with pytest.raises(errors.CalibrationError, match="The model computes in FP16"):
        OnnxRuntimeBackend().build(
            model, BuildConfig(precision="int8"), calibration_data=[dict(case.feed), dict(case.feed)]
        )
