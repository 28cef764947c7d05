"""Linting model files, with a report in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import models
from trtops import errors
from trtops.backend.onnx import bare, stand_ins
from trtops.backend.onnx.bare import load_external_data, read_bare
from trtops.ops.model.lint import LintConfig, lint


def test_a_file_that_runs_has_no_errors(tmp_path: Path) -> None:
    path = models.conv_net().write(tmp_path)
    report = lint(path)
    assert report.ok
    assert f"{len(report.passing)} nodes pass" in report.text()


def test_a_file_that_is_no_model_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    report = lint(tmp_path / "broken.onnx", LintConfig(output=str(tmp_path / "report.json")))
    assert not report.ok
    [entry] = json.loads((tmp_path / "report.json").read_text())["lint_entries"]
    assert entry["level"] == "exception"
    assert "not an ONNX model" in entry["message"]


def test_two_roots_are_found_in_one_go(tmp_path: Path) -> None:
    proto = models.model(
        "(float[2,3] x) => (float[2,4] y) { [a] a = MatMul(x, w) [b] b = Relu(x) [c] c = Frob(b) [d] y = Identity(a) }",
        {"w": np.ones((5, 4), np.float32)},
    )
    report = lint(proto)
    assert {"a", "c"} <= set(report.failing)
    assert "b" in report.passing


def test_given_data_and_shapes_are_used() -> None:
    proto = models.model("(float[n,4] x) => (float[2,2] y) { y = Reshape(x, s) }", {"s": np.array([2, 2])})
    assert lint(proto).ok
    assert not lint(proto, LintConfig(input_shapes={"x": (3, 4)})).ok
    assert not lint(proto, feed={"x": np.ones((5, 4), np.float32)}).ok
    with pytest.raises(errors.ConfigError, match="no input 'z'"):
        lint(proto, LintConfig(input_shapes={"z": (3, 4)}))


@pytest.fixture
def without_weights(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once called, files of all sizes are read without any weight that can be left out."""

    def leave_out() -> None:
        monkeypatch.setattr(bare, "SMALL_FILE", 0)
        monkeypatch.setattr(bare, "LARGE", 0)

    return leave_out


def rank_faults(proto: onnx.ModelProto) -> None:
    """Give every convolution a stride too many, and every product a weight of another size."""
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "strides":
                attribute.ints.append(1)
        if node.op_type in ("MatMul", "Gemm") and node.input[1] in {t.name for t in proto.graph.initializer}:
            node.input[1] = "other"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((17, 3), np.float32), "other"))


@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("faulty", [False, True], ids=["sound", "faulty"])
def test_a_report_is_the_same_without_weights(
    make: Callable[[], models.Case], faulty: bool, tmp_path: Path, without_weights: Callable[[], None]
) -> None:
    case = make()
    if faulty:
        rank_faults(case.proto)
    path = case.write(tmp_path)

    whole = lint(path)
    without_weights()

    assert lint(path) == whole
    in_memory = lint(case.proto, feed=case.feed)
    assert lint(path, feed=case.feed).to_lint_json() == in_memory.to_lint_json()


def test_a_channel_too_many_is_found_though_no_weight_is_read(
    tmp_path: Path, without_weights: Callable[[], None]
) -> None:
    proto = models.conv_net().proto
    weight = next(t for t in proto.graph.initializer if t.name == "w1")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.ones((weight.dims[0], 5, 3, 3), np.float32), "w1"))
    onnx.save(proto, tmp_path / "m.onnx")
    whole = lint(tmp_path / "m.onnx")
    without_weights()

    assert stand_ins.suffice(proto, read_bare(tmp_path / "m.onnx").left_out)
    assert lint(tmp_path / "m.onnx") == whole
    assert whole.failing == ("conv1",)


def test_where_values_decide_they_are_read(tmp_path: Path, without_weights: Callable[[], None]) -> None:
    for value, ok in ((1.0, True), (9.0, False)):
        proto = models.model(
            "(float[4] x) => (float[1] y) { [cast] i = Cast<to = 7>(w) [take] g = Gather(x, i) [y] y = Relu(g) }",
            {"w": np.array([value], np.float32)},
        )
        onnx.save(proto, tmp_path / "m.onnx")
        without_weights()
        assert read_bare(tmp_path / "m.onnx").left_out == {"w"}
        assert lint(tmp_path / "m.onnx").ok == ok


def test_external_data_is_checked_and_left_where_it_is(tmp_path: Path, without_weights: Callable[[], None]) -> None:
    path = models.write_external(models.conv_net(), tmp_path)
    whole = lint(path)
    without_weights()

    assert whole.ok and lint(path) == whole
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:-1])
    assert "cut short" in lint(path).entries[0].message
    data.unlink()
    assert "does not exist" in lint(path).entries[0].message


def test_a_model_beyond_what_protobuf_holds_is_checked_without_reading_it(tmp_path: Path) -> None:
    rows = (1 << 31) // 4 // 64 + 1
    proto = models.model("(int64[2] i) => (float[2,64] y) { [take] g = Gather(w, i) [y] y = Relu(g) }")
    table = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, 64], data_location=TensorProto.EXTERNAL)
    table.external_data.add(key="location", value="w.bin")
    proto.graph.initializer.append(table)
    onnx.save(proto, tmp_path / "m.onnx")
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(rows * 64 * 4)

    assert load_external_data(read_bare(tmp_path / "m.onnx"), tmp_path).left_out == {"w"}
    report = lint(tmp_path / "m.onnx")
    assert report.ok and report.passing == ("take", "y")

    proto.graph.node.append(helper.make_node("MatMul", ["w", "w"], ["z"], name="bad"))
    onnx.save(proto, tmp_path / "m.onnx")
    assert lint(tmp_path / "m.onnx").failing == ("bad",)
