"""PyTorch models where torch is not installed; tests/torch has real modules.

``StandIn`` is a numpy function in the place of a module: it shows how a module and its export are compared, and nothing
about exporting.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import trtops
from tests import models
from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.torch.export import Example, Export
from trtops.comparator.report import Tolerances
from trtops.ops.evaluation.export_check import ExportCheck, check_export
from trtops.system.allowed import VARIABLE


class StandIn:
    source, program, is_object = "nets.py:make", None, False

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def run(self, feed: dict[str, Any], module: Any = None, seed: int = 0) -> dict[str, Any]:
        return {"y": self.function(**feed)}

    def kept_state(self, feed: Any) -> dict[str, Any]:
        return {}

    def watch(self, feed: Any) -> dict[str, Any]:
        return {}

    training = list


def compared(folder: Path, text: str, function: Callable[..., Any], dynamic: tuple[int, ...] = ()) -> ExportCheck:
    onnx.save(models.model(text, opset=20), folder / "model.onnx")
    model = Model.load(folder / "model.onnx")
    random = np.random.default_rng(0)
    feed = {spec.name: random.standard_normal((4, 3)).astype(np.float32) for spec in model.info.inputs}
    stand_in: Any = StandIn(function)
    return check_export(Export(stand_in, folder / "model.onnx", Example(feed, {"a": dynamic})), model, [feed])


def test_export_is_compared_at_other_sizes(tmp_path: Path) -> None:
    text = "(float[n,3] a) => (float[n,3] y) { y = Tanh(a) }"
    check = compared(tmp_path, text, lambda a: np.tanh(a), (0,))
    assert check.verdict == "good" and check.other_sizes == ("a 5x3", "a 8x3")

    check = compared(tmp_path, text, lambda a: np.tanh(a) if len(a) < 8 else a, (0,))
    assert check.verdict == "bad" and check.losses[0].kind == "constant" and "at a 8x3" in check.reasons[0]


def test_exchanged_inputs_are_named(tmp_path: Path) -> None:
    text = "(float[4,3] a, float[4,3] b) => (float[4,3] y) { y = Sub(a, b) }"
    assert compared(tmp_path, text, lambda a, b: a - b).verdict == "good"
    assert compared(tmp_path, text, lambda a, b: b - a).losses[0].text == "inputs 'a' and 'b' are exchanged"


def test_ignored_input_is_named(tmp_path: Path) -> None:
    text = "(float[4,3] a, float[4,3] b) => (float[4,3] y) { y = Neg(a) }"
    assert compared(tmp_path, text, lambda a, b: -a).verdict == "good"
    assert compared(tmp_path, text, lambda a, b: -a + 0 * b + b).losses[0].place == "b"


def exports_to(monkeypatch: pytest.MonkeyPatch, folder: Path, function: Callable[..., Any]) -> list[Path]:
    """Let each PyTorch model have the same ONNX file; the list receives the file for each check of it."""
    onnx.save(models.model("(float[4,3] a) => (float[4,3] y) { y = Tanh(a) }", opset=20), folder / "net.onnx")
    stand_in: Any = StandIn(function)
    exported = Export(stand_in, folder / "net.onnx", Example({"a": np.ones((4, 3), np.float32)}))
    checked = list[Path]()

    def check(export: Export, *arguments: Any) -> ExportCheck:
        checked.append(export.path)
        return check_export(export, *arguments)

    monkeypatch.setattr("trtops.ops.evaluation.torch_models.exported", lambda _, config, build=None: (exported, config))
    monkeypatch.setattr("trtops.ops.evaluation.torch_models.check_export", check)
    return checked


@pytest.mark.parametrize("op", [trtops.calibrate, trtops.choose, trtops.debug_build, trtops.gate])
def test_bad_export_stops_before_builds(op: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exports_to(monkeypatch, tmp_path, lambda a: a)
    tracker = trtops.MemoryTracker()
    with pytest.raises(errors.InvalidModelError, match=r"nothing is built. PyTorch to ONNX: `y`.* Remedy: report"):
        op("nets.py:make", data={"a": np.ones((4, 3), np.float32)}, tracker=tracker)
    assert not tracker.find()


def test_other_tolerances_do_not_repair_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exports_to(monkeypatch, tmp_path, lambda a: a)
    tracker = trtops.MemoryTracker()
    check = trtops.CheckConfig(data={"a": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)}, latency_runs=0)
    bad = trtops.convert("nets.py:make", trtops.ConvertConfig(check=check), tracker=tracker)

    [again] = trtops.ops.reevaluate([bad.run_id], Tolerances(atol=9), tracker)

    assert (bad.verdict, again.verdict, again.reasons) == ("bad", "bad", bad.reasons)
    good = bad.evaluation.report
    unproven = replace(bad.evaluation.export, losses=(), report=replace(good, outputs=()))
    assert replace(bad.evaluation, export=unproven).verdict == "unproven"
    assert replace(bad.evaluation, export=unproven, report=replace(good, verdict="bad")).verdict == "bad"


def test_export_is_checked_once_for_all_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = exports_to(monkeypatch, tmp_path, lambda a: np.tanh(a))
    (tmp_path / "nets.py").touch()
    entry = {"model": "nets.py:make", "precisions": ["fp32", "fp16"], "onnxruntime": {"tactics": []}}
    (tmp_path / "models.yaml").write_text(json.dumps({"models": [entry, {"model": "gone.py:make"}]}))
    tracker = trtops.MemoryTracker()

    result = trtops.build_list(tmp_path / "models.yaml", tracker=tracker)

    *builds, gone = result.builds
    assert [build.precision for build in builds] == ["fp32", "fp16"] and len(checked) == 1
    assert gone.outcome == "error" and "gone.py:make matches no file" in gone.reasons[0]
    for build in builds:
        assert build.run_id, build.reasons
        assert json.loads(tracker.load(build.run_id).read_bytes("accuracy/results.json"))["export"]["feeds"] == 2


def test_missing_torch_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    (tmp_path / "net.py").write_text("")
    with pytest.raises(errors.BackendUnavailableError, match=r'pip install "trtops\[torch\]"'):
        trtops.convert(tmp_path / "net.py:make")


@pytest.mark.parametrize(
    ("name", "message"), [("net.py:make", "may not be run"), ("net.pt2", "may not be run"), ("net.pt", "pickle")]
)
def test_model_outside_allowed_folders_is_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    (tmp_path / name.partition(":")[0]).write_text("raise SystemExit")
    with pytest.raises(errors.ConfigError, match=message):
        trtops.convert(tmp_path / name)
