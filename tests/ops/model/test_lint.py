"""Linting model files, and shapes observed by running them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import models
from trtops import errors
from trtops.backend.onnx import lint as linting
from trtops.ops.model.lint import lint
from trtops.ops.model.observed_shapes import with_observed_shapes


def test_broken_files_are_findings(tmp_path: Path) -> None:
    report = lint(models.conv_net().write(tmp_path))
    assert report.ok and f"{len(report.passing)} nodes pass" in report.text()

    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    report = lint(tmp_path / "broken.onnx")
    [entry] = report.entries
    assert not report.ok and entry.level == "exception" and "not an ONNX model" in entry.message


def test_given_data_and_shapes_are_used() -> None:
    proto = models.model("(float[n,4] x) => (float[2,2] y) { y = Reshape(x, s) }", {"s": np.array([2, 2])})
    assert lint(proto).ok
    assert not lint(proto, input_shapes={"x": (3, 4)}).ok
    assert not lint(proto, feed={"x": np.ones((5, 4), np.float32)}).ok
    with pytest.raises(errors.ConfigError, match="no input 'z'"):
        lint(proto, input_shapes={"z": (3, 4)})


def leave_out_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, weights of any size are kept apart."""
    monkeypatch.setattr(linting, "LARGE", 0)


@pytest.mark.parametrize("make", models.ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("faulty", [False, True], ids=["sound", "faulty"])
def test_reports_are_the_same_without_weights(
    make: Callable[[], models.Case], faulty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make()
    if faulty:  # a stride too many for every convolution, and a weight of another size for every product
        weights = {t.name for t in case.proto.graph.initializer}
        for node in case.proto.graph.node:
            for attribute in node.attribute:
                if attribute.name == "strides":
                    attribute.ints.append(1)
            if node.op_type in ("MatMul", "Gemm") and node.input[1] in weights:
                node.input[1] = "other"
        other = onnx.numpy_helper.from_array(np.ones((17, 3), np.float32), "other")
        case.proto.graph.initializer.append(other)
    path = case.write(tmp_path)

    whole = lint(path)
    leave_out_weights(monkeypatch)
    assert lint(path) == whole
    in_memory = lint(case.proto, feed=case.feed)
    assert lint(path, feed=case.feed).to_lint_json() == in_memory.to_lint_json()


def test_weights_are_read_where_values_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_weights(monkeypatch)
    for value, ok in ((1.0, True), (9.0, False)):
        proto = models.model(
            "(float[4] x) => (float[1] y) { [cast] i = Cast<to = 7>(w) [take] g = Gather(x, i) [y] y = Relu(g) }",
            {"w": np.array([value], np.float32)},
        )
        onnx.save(proto, tmp_path / "m.onnx")
        assert lint(tmp_path / "m.onnx").ok == ok


def test_models_above_2_gib_are_checked_without_loading(tmp_path: Path) -> None:
    rows = (1 << 31) // 4 // 64 + 1
    proto = models.model("(int64[2] i) => (float[2,64] y) { [take] g = Gather(w, i) [y] y = Relu(g) }")
    table = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, 64], data_location=TensorProto.EXTERNAL)
    table.external_data.add(key="location", value="w.bin")
    proto.graph.initializer.append(table)
    onnx.save(proto, tmp_path / "m.onnx")
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(rows * 64 * 4)

    report = lint(tmp_path / "m.onnx")
    assert report.ok and report.passing == ("take", "y")

    proto.graph.node.append(helper.make_node("MatMul", ["w", "w"], ["z"], name="bad"))
    onnx.save(proto, tmp_path / "m.onnx")
    assert lint(tmp_path / "m.onnx").failing == ("bad",)
    (tmp_path / "w.bin").unlink()
    assert "does not exist" in lint(tmp_path / "m.onnx").entries[0].message


def shapes_of(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    graph = proto.graph
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }


def test_data_dependent_shapes_are_observed() -> None:
    proto = models.model("(float[n] x) => (int64[1,k] y) { a = Abs(x)\n y = NonZero(a) }")

    observed = with_observed_shapes(proto, [{"x": np.array([0, 2, 0, 3], np.float32)}])
    assert shapes_of(observed) == {"x": (4,), "a": (4,), "y": (1, 2)}
    assert "dim_value" not in str(proto.graph.input[0])  # the model itself is as it was


def test_models_with_sub_graphs_stay_valid() -> None:
    for case in (models.branch(), models.loop(), models.transformer()):
        proto = with_observed_shapes(case.proto, [case.feed])
        onnx.checker.check_model(proto)
        assert all(dim > 0 for shape in shapes_of(proto).values() for dim in shape)


def test_other_data_is_refused() -> None:
    with pytest.raises(errors.InputError):
        with_observed_shapes(models.identity().proto, [{"other": np.zeros(3, np.float32)}])
