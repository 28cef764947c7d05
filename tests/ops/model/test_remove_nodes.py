"""Nodes of a type taken out, each passing its input on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests import models
from trtops import errors
from trtops.ops.model.surgeon import remove_nodes


def run(model: onnx.ModelProto) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.arange(4, dtype=np.float32)})[0]


def test_what_read_a_node_reads_its_input_and_outputs_keep_their_names(tmp_path: Path) -> None:
    model = models.model("(float[4] x) => (float[4] y) { a = Abs(x) b = Neg(a) y = Abs(b) }")
    before = model.SerializeToString()

    result = remove_nodes(model, tmp_path / "new.onnx", ["Abs"])

    new = onnx.load(tmp_path / "new.onnx")
    assert [node.op_type for node in new.graph.node] == ["Neg", "Identity"]
    assert [value.name for value in new.graph.output] == ["y"]
    np.testing.assert_array_equal(run(new), -np.arange(4, dtype=np.float32))
    assert (result.nodes_before, result.nodes) == (3, 2) and "2 nodes" in result.changes[0]
    assert model.SerializeToString() == before


def test_weights_do_not_count_as_inputs() -> None:
    model = models.model("(float[4] x) => (float[4] y) { a = Add(x, w) y = Neg(a) }", {"w": np.ones(4, np.float32)})

    result = remove_nodes(model, None, ["Add"])

    assert result.path is None
    np.testing.assert_array_equal(run(result.model), -np.arange(4, dtype=np.float32))


def test_what_cannot_be_passed_on_and_what_is_not_there_is_told() -> None:
    model = models.model("(float[4] x) => (float[4] y) { a = Neg(x) y = Add(x, a) }")

    with pytest.raises(errors.ConfigError, match="2 inputs and 1 outputs; expected one of each"):
        remove_nodes(model, None, ["Add"])
    with pytest.raises(errors.ConfigError, match=r"no node of type 'Ad'.*Add"):
        remove_nodes(model, None, ["Ad"])


def test_the_models_own_file_is_not_written_over(tmp_path: Path) -> None:
    path = models.conv_net().write(tmp_path, "conv")
    before = path.read_bytes()

    with pytest.raises(errors.ConfigError, match="would replace a file of the model itself"):
        remove_nodes(path, path, ["Relu"])
    assert path.read_bytes() == before
