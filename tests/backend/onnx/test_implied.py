"""What nodes imply of tensors that nobody made."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from trtops import errors
from trtops.backend.onnx.implied import load_node, output_types


def one_node(node: onnx.NodeProto, *inputs: onnx.ValueInfoProto) -> onnx.ModelProto:
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "node", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def floats(name: str, shape: list[int | None] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def dims(value: onnx.ValueInfoProto) -> list[int | None] | None:
    shape = value.type.tensor_type.shape
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in shape.dim]


def test_the_only_rank_that_a_node_can_read_is_that_of_the_tensor() -> None:
    def implied(node: onnx.NodeProto, *weights: onnx.ValueInfoProto) -> tuple[object, object]:
        graph = load_node(one_node(node, floats("x"), *weights)).graph
        return dims(graph.input[0]), dims(graph.output[0])

    convolution = helper.make_node("Conv", ["x", "w"], ["y"])
    pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2])
    transpose = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    product = helper.make_node("Gemm", ["x", "w"], ["y"])

    assert implied(convolution, floats("w", [8, 3, 2, 2])) == ([None] * 4, [None, 8, None, None])
    assert implied(pool) == ([None] * 3, [None] * 3)
    assert implied(transpose) == ([None] * 2, [None] * 2)
    assert implied(product, floats("w", [4, 5])) == ([None] * 2, [None, 5])


def test_where_several_ranks_fit_nothing_is_said_of_them() -> None:
    for node in (helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Transpose", ["x"], ["y"])):
        graph = load_node(one_node(node, floats("x"))).graph

        assert dims(graph.input[0]) is None and dims(graph.output[0]) is None
        assert graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_a_node_that_fails_even_with_that_rank_fails_whatever_it_reads() -> None:
    convolution = helper.make_node("Conv", ["x", "w"], ["y"], strides=[1, 1, 1])

    with pytest.raises(errors.InferenceError, match="strides has incorrect size"):
        load_node(one_node(convolution, floats("x"), floats("w", [8, 3, 2, 2])))


def test_types_of_outputs_follow_from_the_operator_even_if_the_node_fails() -> None:
    float32, int64, boolean = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    opsets = {"": 17}

    def types(op: str, inputs: list[str], *outputs: str) -> dict[str, int]:
        known = {"f": float32, "g": float32, "i": int64, "b": boolean}
        return output_types(helper.make_node(op, inputs, outputs), opsets, known)

    assert types("Conv", ["unknown", "f"], "y") == {"y": float32}
    assert types("Shape", ["unknown"], "y") == {"y": int64}
    assert types("Concat", ["unknown", "g"], "y") == {"y": float32}
    assert types("Greater", ["unknown", "f"], "y") == {"y": boolean}
    assert types("MaxPool", ["f"], "y", "indices") == {"y": float32, "indices": int64}


def test_types_that_are_open_or_may_be_the_fault_are_left_out() -> None:
    known = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}

    def types(op: str, *inputs: str, domain: str = "") -> dict[str, int]:
        return output_types(helper.make_node(op, inputs, ["y"], domain=domain), {"": 17, "custom": 1}, known)

    assert types("Add", "f", "i") == {}
    assert types("Conv", "i", "i") == {}
    assert types("Cast", "f") == {}
    assert types("Relu", "unknown") == {}
    assert types("Relu", "f", domain="custom") == {}
    assert types("NoSuchOperator", "f") == {}
