"""Results of other tools become runs: of tools that run here from their own files, of others from what their source writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from tests import models
from trtops import errors
from trtops.ops.importing.op import import_results
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Tag


def imported(file: Path) -> tuple[MemoryTracker, list[str]]:
    tracker = MemoryTracker()
    return tracker, list(import_results([file], tracker=tracker).runs)


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_profile_of_onnx_runtime_has_each_node_with_its_time(tmp_path: Path) -> None:
    case = models.transformer()
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ort.InferenceSession(case.write(tmp_path), options, providers=["CPUExecutionProvider"])
    for _ in range(3):
        session.run(None, dict(case.feed))

    tracker, [run] = imported(Path(session.end_profiling()))

    info, stored = tracker.info(run), tracker.load(run)
    assert info.kind == "imported" and info.tags[Tag.IMPORTED_FROM] == "onnxruntime"
    assert info.params["inferences"] == "3" and info.metrics["latency", "p50_ms"] > 0
    found = json.loads(stored.read_bytes("imported.json"))
    assert {"LayerNormalization", "MatMul"} <= {layer["op"] for layer in found["layers"]}
    assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1)
    assert "the engine" in found["lacks"]


@pytest.fixture(scope="module")
def polygraphy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that Polygraphy itself wrote: outputs of two runners, and a debug replay."""
    folder = tmp_path_factory.mktemp("polygraphy")
    onnx.save(models.conv_net().proto, folder / "m.onnx")
    tool = str(Path(sys.executable).with_name("polygraphy"))
    for line in (
        "run m.onnx --onnxrt --onnxrt --save-outputs outputs.json",
        "debug reduce m.onnx -o small.onnx --save-debug-replay replay.json --check true",
    ):
        subprocess.run([tool, *line.split()], cwd=folder, capture_output=True, check=True)
    return folder


def test_saved_results_of_polygraphy_become_a_run_for_each_runner(polygraphy: Path) -> None:
    tracker, runs = imported(polygraphy / "outputs.json")
    first, second = (tracker.info(run) for run in runs)
    assert first.params["compared with"] == "nothing"
    assert [value for name, value in second.metrics.items() if name[-1] == "max_abs"] == [0.0]
    assert first.metrics["latency", "p50_ms"] > 0


def test_a_debug_replay_of_polygraphy_has_its_verdicts(polygraphy: Path) -> None:
    tracker, [run] = imported(polygraphy / "replay.json")
    info = tracker.info(run)
    assert info.params["what"] == "debug replay"
    assert info.metrics["iterations", "good"] == int(info.params["steps"]) > 0


# As exportJSONTrace and exportJSONProfile of TensorRT 8.5.1's trtexec put them; no trtexec runs here.
TIMES = ",".join(
    f'{{ "startEnqMs" : {i}, "endEnqMs" : {i}.1, "startH2dMs" : {i}, "endH2dMs" : {i}.2, "startComputeMs" : {i}.2, '
    f'"endComputeMs" : {i}.9, "startD2hMs" : {i}.9, "endD2hMs" : {i}.95, "h2dMs" : 0.2, "computeMs" : 0.7, "d2hMs" : 0.05, '
    f'"latencyMs" : {0.95 + i / 100} }}'
    for i in range(11)
)
PROFILE = """[
  { "count" : 100 }
, { "name" : "conv1 + relu", "timeMs" : 30, "averageMs" : 0.3, "medianMs" : 0.29, "percentage" : 75 }
, { "name" : "fc", "timeMs" : 10, "averageMs" : 0.1, "medianMs" : 0.1, "percentage" : 25 }
]"""
LAYERS = '{"Layers": [{"Name": "conv\x011", "LayerType": "Convolution", "Outputs": [{"Name": "y", "Format/Datatype": "Half"}], "TacticName": "sm80_x"}], "Bindings": ["x", "y"]}'
STATUS = """format_version: 0.2.3
model_navigator_version: 0.8.0
models_status:
  trt-fp16:
    model_config: {key: trt-fp16, format: trt, precision: fp16}
    runners_status:
      TensorRT:
        runner_name: TensorRT
        status: {Correctness: OK, Performance: OK}
        result:
          Performance:
            profiling_results:
            - {sample_id: 0, batch_size: 8, avg_latency: 2.0, p50_latency: 1.9, p99_latency: 2.5, throughput: 4000.0, request_count: 50}
"""
QUANTIZED = '{"producer": {"name": "modelopt", "version": "0.19.0"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": null, "exclude_modules": ["lm_head"]}}'


def test_what_trtexec_writes_is_read(tmp_path: Path) -> None:
    files = [
        written(tmp_path, "times.json", f"[\n  {TIMES}\n]"),
        written(tmp_path, "profile.json", PROFILE),
        written(tmp_path, "layers.json", LAYERS),
    ]
    tracker = MemoryTracker()
    result = import_results(files, tracker=tracker, experiment="resnet", model_sha256="a" * 64)
    times, profile, layers = (tracker.info(run) for run in result.runs)
    assert times.metrics["latency", "p50_ms"] == pytest.approx(1.0) and times.tags[Tag.MODEL_SHA256] == "a" * 64
    assert profile.metrics["profile", "total_ms"] == pytest.approx(0.4)
    assert result.found[2].layers[0].tactic == "sm80_x" and layers.experiment == "resnet"
    assert "outputs, and so any accuracy" in times.tags[Tag.NOTE]


def test_model_navigators_status_and_modelopts_quantization_are_read(tmp_path: Path) -> None:
    tracker = MemoryTracker()
    files = [written(tmp_path, "status.yaml", STATUS), written(tmp_path, "hf_quant_config.json", QUANTIZED)]
    navigator, modelopt = (tracker.info(run) for run in import_results(files, tracker=tracker).runs)
    assert navigator.verdict == "good" and navigator.metrics["latency", "p50_ms"] == 1.9
    assert navigator.params["precision"] == "fp16"
    assert modelopt.params["quant_algo"] == "FP8" and modelopt.params["exclude_modules"] == "lm_head"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("modelopt_state.pth", "x", "pickled objects run code"),
        ("other.json", '{"a": 1}', "neither trtexec's times"),
        ("cut.json", "[{", "neither JSON nor YAML"),
        ("profile.json", '[{"count": 1}, {"name": "a", "averageMs": 1}]', "a field is missing"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_logged(name: str, text: str, said: str, tmp_path: Path) -> None:
    tracker = MemoryTracker()
    good = written(tmp_path, "good.json", PROFILE)
    with pytest.raises(errors.FormatError, match=said):
        import_results([good, written(tmp_path, name, text)], tracker=tracker)
    assert tracker.find() == []
