"""Inspection of models, engines, data, tactics, calibration caches and runs."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.base import BuildRequest
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.calibration.cache import CalibrationCache, TensorRange
from trtops.comparator import Comparator, CompareFunc
from trtops.comparator.results import IterationResult, RunResults
from trtops.json import save_json
from trtops.ops.model.capability import CapabilityReport, capability
from trtops.ops.model.inspect.data import inspect_data
from trtops.ops.model.inspect.models import inspect_model
from trtops.ops.model.inspect.records import inspect_calibration, inspect_tactics
from trtops.spec import BuildConfig, OnnxRuntimeOptions


def test_models_are_shown_as_text_and_json(tmp_path: Path) -> None:
    for proto in (make().proto for make in models.ALL):
        inspected = inspect_model(proto, show=("layers", "attrs", "weights"), infer_shapes=True)
        assert "---- " in inspected.text()
        assert json.loads(json.dumps(inspected.to_json()))["graph"]["nodes"][0]["op"] == proto.graph.node[0].op_type

    # External weights are only read when they are shown.
    path = models.write_external(models.conv_net(), tmp_path)
    (tmp_path / "weights.bin").unlink()
    text = inspect_model(path, show=("layers", "attrs")).text()
    assert "[Op: Conv]" in text and "softmax.axis = 1" in text and "Initializer" in text
    with pytest.raises(errors.InvalidModelError):
        inspect_model(path, show=("weights",))


def test_an_engine_of_onnx_runtime_is_shown(tmp_path: Path) -> None:
    model = Model.load(models.conv_net().write(tmp_path))
    build = engine_backend("onnxruntime").build(
        BuildRequest(model, BuildConfig(options=OnnxRuntimeOptions(tactics=())))
    )
    (tmp_path / "engine.ort").write_bytes(build.engine.plan)
    inspected = inspect_model(tmp_path / "engine.ort", show=("layers",))
    assert "ONNX Runtime Engine" in inspected.text()
    assert json.dumps(inspected.to_json())
    tactics = tmp_path / "tactics.json"
    tactics.write_text(build.tactics.to_json())
    assert build.tactics.choices[0].layer in inspect_tactics(tactics).text()


def test_saved_outputs_have_statistics_and_histograms(tmp_path: Path) -> None:
    values = np.array([[1, np.nan, 4], [np.inf, -3, 2]], np.float32)
    results = RunResults()
    results.add([IterationResult({"y": values}, runner_name="r")] * 2, runner_name="r")
    results.save(str(tmp_path / "outputs.json"))

    inspected = inspect_data(tmp_path / "outputs.json", show_values=True, histogram=True)

    [summary] = inspected.to_json()
    assert (summary["minimum"], summary["maximum"], summary["nan"], summary["inf"]) == (-3, 4, 1, 1)
    assert (summary["mean"], summary["median"], summary["magnitude"]) == (1.0, 1.5, 2.5)
    assert "NaN=1, inf=1 | Others: mean=1, " in inspected.text() and "min=-3, max=4" in inspected.text()
    assert "---- r (2 iterations) ----" in inspected.text() and "####" in inspected.text()
    assert len(inspect_data(tmp_path / "outputs.json", all_iterations=True).to_json()) == 2  # type: ignore[arg-type]


def test_saved_comparisons_are_shown(tmp_path: Path) -> None:
    results = RunResults()
    for name, value in (("a", 1.0), ("b", 1.5)):
        results.add([IterationResult({"y": np.full(2, value)}, runner_name=name)], runner_name=name)
    functions = [CompareFunc.simple(check_error_stat="max"), CompareFunc.indices()]
    Comparator.compare_accuracy(results, compare_func=functions).save(str(tmp_path / "acc.json"))

    inspected = inspect_data(tmp_path / "acc.json")
    assert "==== Accuracy Results (2 comparison(s)) ====" in inspected.text()
    assert (
        "a vs. b | 0/1 iteration(s) matched" in inspected.text()
        and "y | FAILED | max_absdiff=0.5, " in inspected.text()
    )
    assert inspected.to_json()[0]["numbers"]["max_absdiff"] == 0.5  # type: ignore[index, call-overload]


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK")
    save_json([{"x": [[1.0], [1.0, 2.0]]}], tmp_path / "ragged.json")
    for name, kind, message in (
        ("nothing.json", errors.ConfigError, ""),
        ("bad.npz", errors.FormatError, ""),
        ("ragged.json", errors.FormatError, r"ragged\.json: 'x' is not an array"),
    ):
        with pytest.raises(kind, match=message):
            inspect_data(tmp_path / name)
    with pytest.raises(errors.InvalidModelError):
        inspect_model(tmp_path / "nothing.onnx")


def test_calibration_caches_are_shown(tmp_path: Path) -> None:
    ranges = (TensorRange(name="x", amax=2.54, low=-1.0, high=2.54),)
    (tmp_path / "c.json").write_bytes(CalibrationCache(algorithm="max", ranges=ranges, samples=4).to_bytes())
    text = inspect_calibration(str(tmp_path / "c.json")).text()
    assert "1 tensor by max, from 4 samples" in text and "0.02" in text


def test_unsupported_nodes_are_listed_and_separated() -> None:
    two_branches = models.model(
        """(float[4] x) => (float[4] y) {
            [a] a = Relu(x) [b] b = custom.Frobnicate(a) [c] c = Abs(b)
            [d] d = Neg(x) [e] e = custom.Frobnicate(d) [f] f = Exp(e)
            [g] y = Add(c, f)
        }"""
    )
    report = capability(two_branches, "onnxruntime")

    assert not report.supported
    [refusal] = report.refused
    assert (refusal.op, refusal.nodes) == ("custom.Frobnicate", ("b", "e"))
    assert [(part.supported, part.nodes) for part in report.parts] == [
        (True, ("a", "d")),
        (False, ("b", "e")),
        (True, ("c", "f", "g")),
    ]
    assert "refuses 2 of 7 nodes" in report.text()
    assert CapabilityReport.from_json(report.to_json()) == report


def test_parts_are_written_as_models(tmp_path: Path) -> None:
    proto = models.model(
        "(float[2] x) => (float[2] y) <float[2] a, float[2] b> { a = Relu(x) b = custom.Frobnicate(a) y = Neg(b) }"
    )
    report = capability(proto, "onnxruntime", output_dir=tmp_path / "parts")
    assert [part.supported for part in report.parts] == [True, False, True]
    last = models.run(onnx.load(report.parts[2].path), {"b": np.array([1, -2], np.float32)})
    np.testing.assert_array_equal(last["y"], [-1, 2])

    whole = capability(models.conv_net().proto, "onnxruntime", output_dir=tmp_path / "whole")
    assert whole.supported and whole.text().endswith("nodes.") and not (tmp_path / "whole").exists()


def test_onnx_runtime_supports_every_model_it_runs() -> None:
    assert all(capability(make().proto, "onnxruntime").supported for make in models.ALL)
