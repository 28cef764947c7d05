"""Bundles reproduce a verdict in a process without trtops."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import onnx
import pytest

from tests import cuda_double, models
from trtops import errors
from trtops.backend.onnxrt import reproduce
from trtops.comparator import standalone
from trtops.comparator.report import Tolerances
from trtops.ops.bundling.case import Case, engine_case
from trtops.ops.bundling.op import BundleConfig, bundle
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.result import op_run
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking.memory import MemoryTracker

ROOT = Path(__file__).resolve().parents[3]
CHECK = CheckConfig(latency_runs=0, plots="never")
APPROXIMATE = OnnxRuntimeOptions(tactics=("GeluApproximation",), allow_approximation=True, tactic_seed=0)


def overflowing() -> models.Case:
    """A product with weights so large that FP16 overflows."""
    text = "(float[2,64] x) => (float[2,64] y) { [mm] a = MatMul(x, w) [sq] b = Mul(a, a) [rt] y = Sqrt(b) }"
    return models.Case(models.model(text, {"w": models.random(64, 64, scale=100)}), {}, name="overflowing")


@pytest.fixture(scope="module")
def runs(tracker: MemoryTracker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Runs: a build with a bad tactic, and one that overflows in FP16."""
    folder = tmp_path_factory.mktemp("models")
    files = {case.name: case.write(folder) for case in (models.transformer().fixed(), overflowing())}
    requests = {
        "tactic": ("transformer", ConvertConfig(build=BuildConfig(options=APPROXIMATE), check=CHECK)),
        "overflow": ("overflowing", ConvertConfig(build=BuildConfig(precision="fp16"), check=CHECK)),
    }
    return {name: convert(files[model], config, tracker=tracker).run_id for name, (model, config) in requests.items()}


def run_as_a_stranger(zipped: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Unpack, and run the script where importing trtops fails."""
    with zipfile.ZipFile(zipped) as archive:
        archive.extractall(folder)
    (folder / "none").mkdir()
    (folder / "none" / "trtops.py").write_text("raise ImportError('there is no trtops here')")
    environment = {**os.environ, "PYTHONPATH": str(folder / "none")}
    return subprocess.run([sys.executable, "reproduce.py"], cwd=folder, env=environment, capture_output=True, text=True)


def test_bad_tactic_is_reproduced_without_trtops(runs: dict[str, str], tracker: MemoryTracker, tmp_path: Path) -> None:
    result = bundle(runs["tactic"], BundleConfig(output=str(tmp_path / "b.zip")), tracker=tracker)

    again = run_as_a_stranger(tmp_path / "b.zip", tmp_path / "there")

    assert again.returncode == 0 and again.stdout == result.printed
    assert "verdict: bad" in again.stdout
    expected = tracker.info(runs["tactic"]).metrics["error", "max_abs"]
    assert f"max abs error {expected:.6g}" in again.stdout
    assert {"tactics.json", "spec.json", "environment.json", "constraints.txt", "issue.md", "engine/engine.ort"} <= set(
        result.files
    )
    report = (tmp_path / "there" / "issue.md").read_text()
    assert "wrong outputs" in report and "elements exceed" in report
    assert "host" not in json.loads((tmp_path / "there" / "environment.json").read_text())


def test_settings_of_cuda_are_in_the_case() -> None:
    case = Mock(spec=Case, model=models.transformer().proto)
    options = OnnxRuntimeOptions(providers=("cuda", "cpu"), tf32=True)
    record = Mock(settings=(("CudnnHeuristicSearch", "on"), ("PreferNhwc", "off")))
    with patch("trtops.ops.bundling.case.replace", side_effect=lambda case, **changes: changes):
        engine = engine_case(case, BuildConfig(options=options), record, None, Mock())
    settings = {"use_tf32": "1", "cudnn_conv_algo_search": "HEURISTIC"}
    assert engine["settings"]["providers"] == [["CUDAExecutionProvider", settings], "CPUExecutionProvider"]


def test_case_with_a_cuda_graph_is_run_without(
    runs: dict[str, str], tracker: MemoryTracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle(runs["tactic"], BundleConfig(output=str(tmp_path / "b.zip")), tracker=tracker)
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        archive.extractall(tmp_path)
    case = json.loads((tmp_path / "case.json").read_text())
    case["providers"] = [["CUDAExecutionProvider", {"enable_cuda_graph": "1"}]]
    (tmp_path / "case.json").write_text(json.dumps(case))
    cuda_double.install(monkeypatch)
    monkeypatch.setitem(sys.modules, "evaluate", standalone)
    assert reproduce.main(tmp_path) == 0


def test_bundles_are_deterministic(runs: dict[str, str], tracker: MemoryTracker, tmp_path: Path) -> None:
    configs = [BundleConfig(output=str(tmp_path / f"{name}.zip")) for name in "ab"]
    assert len({bundle(runs["overflow"], config, tracker=tracker).sha256 for config in configs}) == 1


def test_unreproducible_runs_are_refused(tmp_path: Path, tracker: MemoryTracker) -> None:
    by_snr = ConvertConfig(check=replace(CHECK, tolerances=Tolerances(min_snr=20.0)))
    evaluated = convert(models.conv_net().fixed().write(tmp_path), by_snr, tracker=tracker).run_id
    with pytest.raises(OSError, match="disk is gone"), op_run(tracker, "e", "n", kind="build") as op:
        raise OSError("the disk is gone")
    for run_id, message in (
        (evaluated, "evaluated by min_snr"),
        (op.run.id, "nothing can be reproduced: .*disk is gone"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            bundle(run_id, BundleConfig(output=str(tmp_path / "b.zip")), tracker=tracker)


def test_failed_build_is_bundled(tmp_path: Path) -> None:
    path, tracker = models.no_kernel().write(tmp_path), MemoryTracker()
    with pytest.raises(errors.BackendError):
        convert(path, ConvertConfig(check=CHECK), tracker=tracker)
    path.unlink()  # the run kept it
    [failed] = tracker.find()

    result = bundle(failed.id, BundleConfig(output=str(tmp_path / "b.zip")), tracker=tracker)

    again = run_as_a_stranger(tmp_path / "b.zip", tmp_path / "there")
    assert again.returncode == 0 and "verdict: error" in again.stdout and "custom:Frobnicate" in again.stdout
    assert result.repeats == "error" and "An engine." in (tmp_path / "there" / "issue.md").read_text()
    # With a valid model, the script reports that the error is gone.
    onnx.save(models.model("(float[4] x) => (float[4] y) { y = Relu(x) }"), tmp_path / "there" / "model.onnx")
    repaired = subprocess.run([sys.executable, "reproduce.py"], cwd=tmp_path / "there", capture_output=True, text=True)
    assert repaired.returncode == 1 and "verdict: good (reported: error" in repaired.stdout

    run = tracker.reopen(failed.id)
    for damaged in ("spec.json", "environment.json", "materials.json"):
        whole = tracker.peek(failed.id, damaged)
        run.log_bytes(b'{"cut', damaged)
        run.fail("again")
        with pytest.raises(errors.TrtopsError, match="JSON"):
            bundle(failed.id, BundleConfig(output=str(tmp_path / "c.zip")), tracker=tracker)
        run = tracker.reopen(failed.id)
        run.log_bytes(whole, damaged)
    assert not (tmp_path / "c.zip").exists()


@pytest.mark.parametrize("library", ["onnxrt", "trt"])
def test_crash_is_a_verdict(library: str, tmp_path: Path) -> None:
    script = (ROOT / "trtops" / "backend" / library / "reproduce.py").read_text()
    (tmp_path / "reproduce.py").write_text(script)
    (tmp_path / "case.json").write_text('{"verdict": "error"}')
    (tmp_path / "evaluate.py").write_text((ROOT / "trtops" / "comparator" / "standalone.py").read_text())
    for module in ("onnxruntime", "cuda"):
        (tmp_path / f"{module}.py").write_text("import os\nos.abort()")
    died = subprocess.run([sys.executable, "reproduce.py"], cwd=tmp_path, capture_output=True, text=True)
    assert died.returncode == 0 and "verdict: error (reported: error; the process died of 6)" in died.stdout
