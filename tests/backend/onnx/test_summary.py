"""Summaries: complete as records, readable as text, without reading weights."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests import models
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.summary import ModelSummary, describe, summary
from trtops.metadata import DataType


def test_summary_has_polygraphys_layout() -> None:
    expected = """==== ONNX Model ====
    Name: test_identity | ONNX Opset: 8

    ---- 1 Graph Input(s) ----
    {x [dtype=float32, shape=(1, 1, 2, 2)]}

    ---- 1 Graph Output(s) ----
    {y [dtype=float32, shape=(1, 1, 2, 2)]}

    ---- 0 Initializer(s) ----

    ---- 1 Node(s) ----"""
    assert summary(models.identity().proto) == expected


def test_layers_attributes_and_weights_are_shown_on_request() -> None:
    text = summary(models.branch().proto, ["layers", "attrs", "weights"])

    assert "    Node 1    | choose [Op: If]\n        {flag [dtype=bool, shape=()]}\n         -> {b}" in text
    assert "choose.then_branch = \n                ---- 0 Subgraph Input(s) ----\n                {}\n" in text
    assert "---- 1 Subgraph Output(s) ----\n" in text
    assert "{t,\n" in text and "w [dtype=float32, shape=(2, 3)]}" in text
    assert "Initializer | w [dtype=float32, shape=[2, 3]] | Values:\n        [[" in text
    assert "Node 0" not in summary(models.branch().proto)
    assert "then_branch" not in summary(models.branch().proto, ["layers"])
    conv = summary(models.conv_net().proto, ["attrs"])
    assert "conv0.pads = [1, 1, 1, 1]" in conv and "Initializer | w0 [dtype=float32" in conv


@pytest.mark.parametrize("make", [*models.ALL, models.no_kernel], ids=lambda f: f.__name__)
def test_descriptions_are_complete_and_serializable(make: Callable[[], models.Case]) -> None:
    proto = make().proto

    described = describe(proto)

    assert ModelSummary.from_json(described.to_json()) == described
    assert len(described.graph.nodes) == len(proto.graph.node)
    info = Model.from_proto(proto).info
    assert (described.graph.inputs, described.graph.outputs) == (info.inputs, info.outputs)
    assert described.weight_bytes >= sum(len(t.raw_data) for t in proto.graph.initializer)
    assert summary(proto, ["layers", "attrs", "weights"]).startswith("==== ONNX Model ====")


def test_external_weights_need_not_be_there(tmp_path: Path) -> None:
    path = models.write_external(models.conv_net(), tmp_path)
    (tmp_path / "weights.bin").unlink()
    bare = onnx.load(path, load_external_data=False)

    described = describe(bare)

    assert described.weight_bytes == describe(models.conv_net().proto).weight_bytes
    assert described.graph.initializers[0].dtype is DataType.FLOAT32
    assert "w0 [dtype=float32, shape=[8, 3, 3, 3]] | Values:\n        (in another file" in summary(bare, ["weights"])
