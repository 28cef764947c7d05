"""Surgeon: extract, insert, sanitize, prune, strip and reconstruct."""

import hashlib
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tests import models
from trtops import errors, ops
from trtops.backend.onnx import weights
from trtops.metadata import DataType, TensorSpec
from trtops.ops import SaveConfig


def run(model: onnx.ModelProto | Path, feed: models.Arrays) -> list[np.ndarray]:
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, dict(feed))


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir() if file.is_file()}


def test_sanitize_folds_and_the_outputs_stay_the_same(tmp_path: Path) -> None:
    case = models.foldable()
    path = case.write(tmp_path)
    before = digests(tmp_path)

    result = ops.sanitize(path, tmp_path / "new" / "clean.onnx", fold_constants=True)

    assert result.nodes < result.nodes_before
    for ours, theirs in zip(run(tmp_path / "new" / "clean.onnx", case.feed), run(case.proto, case.feed)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert digests(tmp_path) == before


def test_other_input_shapes_change_all_shapes() -> None:
    proto = models.model("(float[1,3] x) => (float[1,3] y) { a = Relu(x) y = Neg(a) }")
    result = ops.sanitize(onnx.shape_inference.infer_shapes(proto), input_shapes={"x": ("batch", 7)})
    [inner] = result.model.graph.value_info
    dims = inner.type.tensor_type.shape.dim
    assert (dims[0].dim_param, dims[1].dim_value) == ("batch", 7)
    assert result.model.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 7

    branches = models.model(
        """(float[1,3] x, bool flag) => (float[1,3] y) {
            y = If(flag) <then_branch = yes () => (float[1,3] a) { a = Relu(x) },
                          else_branch = no () => (float[1,3] b) { b = Neg(x) }>
        }"""
    )
    other = ops.sanitize(branches, input_shapes={"x": (2, 7)}).model
    onnx.shape_inference.infer_shapes(other, strict_mode=True)  # no declared shape contradicts, also in the bodies
    assert [dim.dim_value for dim in other.graph.output[0].type.tensor_type.shape.dim] == [2, 7]


def test_sanitize_bounds_sizes() -> None:
    proto = models.model(
        """(float[n] x) => (int64[m] y) {
            total = ReduceSum<keepdims = 0>(x) count = Cast<to = 7>(total)
            zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() y = Range(zero, count, one)
        }"""
    )
    result = ops.sanitize(proto, fold_constants=True, upper_bounds={"": 3})
    [array] = run(result.model, {"x": np.ones(9, np.float32)})
    assert array.tolist() == [0, 1, 2]


def test_the_input_file_cannot_be_overwritten(tmp_path: Path) -> None:
    path = models.write_external(models.conv_net(), tmp_path)
    before = digests(path.parent)
    for output, save_as in ((path, SaveConfig()), (tmp_path / "other.onnx", SaveConfig(external_data="weights.bin"))):
        with pytest.raises(errors.ConfigError, match="would overwrite"):
            ops.sanitize(path, output, save_as=save_as)
    assert digests(path.parent) == before


def test_extract_keeps_a_part() -> None:
    proto = models.model("(float[4] x, float[4] z) => (float[4] y) { a = Relu(x) b = Add(a, z) y = Neg(b) }")

    part = ops.extract(proto, inputs=[TensorSpec("a"), TensorSpec("z")], outputs=[TensorSpec("b")])

    assert [node.op_type for node in part.model.graph.node] == ["Add"]
    assert part.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4
    with pytest.raises(errors.ConfigError, match="'z'"):
        ops.extract(proto, inputs=[TensorSpec("a", DataType.FLOAT32, (4,))], outputs=[TensorSpec("b")])


def test_insert_replaces_nodes_or_passes_tensors_through() -> None:
    proto = models.model("(float[4] x) => (float[4] y) { a = Relu(x) b = Abs(a) c = Exp(b) y = Neg(c) }")
    result = ops.insert(proto, None, "LeakyRelu", ["a"], ["c"], name="new", attributes={"alpha": 0.5})
    assert [node.op_type for node in result.model.graph.node] == ["Relu", "LeakyRelu", "Neg"]
    assert run(result.model, {"x": np.full(4, 2, np.float32)})[0].tolist() == [-2] * 4

    proto = models.model("(float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }")
    for tensor, value in (("a", -1.0), ("y", 1.0)):
        result = ops.insert(proto, None, "Exp", [tensor], [tensor])
        assert [output.name for output in result.model.graph.output] == ["y"]
        assert run(result.model, {"x": np.zeros(4, np.float32)})[0].tolist() == [value] * 4


def test_insert_refuses_cycles_and_unknown_tensors() -> None:
    proto = models.model("(float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }")
    result = ops.insert(proto, None, "Mine", ["x"], ["a"], domain="acme")
    assert {o.domain for o in result.model.opset_import} == {"", "acme"}
    with pytest.raises(errors.ConfigError, match="depend on itself"):
        ops.insert(proto, None, "Exp", ["y"], ["a"])
    with pytest.raises(errors.ConfigError, match="no tensor 'nowhere'") as caught:
        ops.insert(models.conv_net().proto, None, "Exp", ["nowhere"], ["r0"])
    suggestions = re.findall("'([^']*)'", str(caught.value))[1:]
    assert suggestions == sorted(suggestions) and len(suggestions) > 5


def sparse_weights(model: onnx.ModelProto) -> set[str]:
    """Names of the weights that are 2:4 sparse."""
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    axes = weights.reduced_axes(model.graph)
    return {name for name, axis in axes.items() if weights.is_sparse(arrays[name], axis)}


def test_pruning_keeps_two_of_four_like_polygraphy() -> None:
    matrix = models.random(8, 6)
    proto = models.model("(float[3,8] x) => (float[3,6] y) { y = MatMul(x, m) }", {"m": matrix})
    [pruned] = map(numpy_helper.to_array, ops.prune(proto).model.graph.initializer)
    pairs = [np.sort(np.abs(weights.T.reshape(6, 2, 4)), axis=2)[:, :, 2:] for weights in (pruned, matrix)]
    np.testing.assert_array_equal(*pairs)

    from polygraphy.tools.sparse import SparsityPruner

    ours = ops.prune(models.conv_net().proto).model
    theirs = SparsityPruner(models.conv_net().proto).prune()
    expected = {tensor.name: numpy_helper.to_array(tensor) for tensor in theirs.graph.initializer}
    for tensor in ours.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), expected[tensor.name])


def test_stripped_weights_come_back_from_the_original(tmp_path: Path) -> None:
    case = models.transformer()
    path = case.write(tmp_path)

    stripped = ops.strip_weights(path, tmp_path / "stripped.onnx")
    whole = ops.reconstruct_weights(tmp_path / "stripped.onnx", tmp_path / "whole.onnx", original=path)

    assert (tmp_path / "stripped.onnx").stat().st_size < path.stat().st_size / 2
    assert "TRT_WEIGHTLESS" in str(stripped.model) and "TRT_WEIGHTLESS" not in str(whole.model)
    np.testing.assert_array_equal(run(tmp_path / "whole.onnx", case.feed)[0], run(path, case.feed)[0])


def test_random_weights_are_repeatable_and_sparse() -> None:
    case = models.conv_net()
    pruned = ops.prune(case.proto).model
    bare = ops.strip_weights(pruned).model

    first, second = (ops.reconstruct_weights(bare).model for _ in range(2))

    assert first == second
    assert np.isfinite(run(first, case.feed)[0]).all()
    before = sparse_weights(pruned)
    assert before and sparse_weights(first) >= before


def test_removed_nodes_pass_their_input_on(tmp_path: Path) -> None:
    feed = {"x": np.arange(4, dtype=np.float32)}
    model = models.model("(float[4] x) => (float[4] y) { a = Abs(x) b = Neg(a) y = Abs(b) }")
    result = ops.remove_nodes(model, tmp_path / "new.onnx", ["Abs"])
    new = onnx.load(tmp_path / "new.onnx")
    assert [node.op_type for node in new.graph.node] == ["Neg", "Identity"]
    assert [value.name for value in new.graph.output] == ["y"]
    np.testing.assert_array_equal(run(new, feed)[0], -feed["x"])
    assert (result.nodes_before, result.nodes) == (3, 2) and "2 nodes" in result.changes[0]
    assert [node.op_type for node in model.graph.node] == ["Abs", "Neg", "Abs"]

    # Bodies read the tensor too.
    text = """(float[4] x, bool c) => (float[4] y) {
        b = Neg(x) a = Abs(b)
        z = If(c) <then_branch = yes () => (float[4] t) { d = Abs(a) t = Neg(d) },
                   else_branch = no () => (float[4] t) { e = Exp(a) t = Neg(e) }>
        y = Add(z, a)
    }"""
    removed = ops.remove_nodes(models.model(text), None, ["Abs"])
    assert removed.nodes == 6
    for flag in (True, False):
        expected = -feed["x"] + (feed["x"] if flag else -np.exp(-feed["x"]))
        np.testing.assert_allclose(run(removed.model, {**feed, "c": np.array(flag)})[0], expected, rtol=1e-6)

    # Weights do not count as inputs.
    model = models.model("(float[4] x) => (float[4] y) { a = Add(x, w) y = Neg(a) }", {"w": np.ones(4, np.float32)})
    np.testing.assert_array_equal(run(ops.remove_nodes(model, None, ["Add"]).model, feed)[0], -feed["x"])

    model = models.model("(float[4] x) => (float[4] y) { a = Neg(x) y = Add(x, a) }")
    for kind, message in (("Add", "2 inputs and 1 outputs; expected one of each"), ("Ad", "no node of type 'Ad'.*Add")):
        with pytest.raises(errors.ConfigError, match=message):
            ops.remove_nodes(model, None, [kind])
