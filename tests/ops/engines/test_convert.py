"""The convert op without Prefect: what it leaves in a run, and what bad input gets."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import models
from tests.attacks.outages import contents, failures
from tests.stores import copy_store
from trtops import errors
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.search import Search
from trtops.backend.onnxrt.timing_cache import TimingCache
from trtops.backend.trt.building.precision import layers_to_keep
from trtops.calibration.cache import CalibrationCache, TensorRange
from trtops.calibration.data import ArraysInMemory
from trtops.cli.main import main
from trtops.comparator.report import Tolerances
from trtops.ops.engines.calibrate import CalibrateConfig, calibrate
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.engines.fit_precision import fit_precision
from trtops.ops.engines.request import CommandData, read_timing_cache
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, Precision, TensorRTOptions
from trtops.tracking import builds, schema
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.store import default_tracker
from trtops.verdict import PASSED

QUICK = CheckConfig(latency_runs=3, warm_up=1)


@pytest.fixture
def tracker() -> MemoryTracker:
    return MemoryTracker()


@pytest.fixture
def conv_net(tmp_path: Path) -> Path:
    return models.conv_net().fixed().write(tmp_path, "conv")


def test_runs_hold_the_build_statistics_and_model(tracker: MemoryTracker, conv_net: Path) -> None:
    result = convert(conv_net, ConvertConfig(check=QUICK), tracker=tracker)

    run = tracker.load(result.run_id)
    build = builds.load_build(run)
    with engine_backend("onnxruntime").runner(build.engine) as runner:
        outputs = runner.infer(models.conv_net().feed)
    assert build.spec.digest == result.spec_sha256
    assert build.tactics.choices and build.layers and build.timing_cache
    assert set(outputs) == {value.name for value in models.conv_net().proto.graph.output}
    assert {output.name for output in result.evaluation.report.outputs} == set(outputs)
    assert len(run.info.metrics) <= 12
    assert run.read_bytes("model/conv.onnx") == conv_net.read_bytes()
    assert run.info.metrics["latency", "p50_ms"] > 0
    assert ("latency", "device_p50_ms") not in run.info.metrics  # a processor has no device of its own


def test_too_large_engines_are_bad(tracker: MemoryTracker, conv_net: Path) -> None:
    size = convert(conv_net, ConvertConfig(check=QUICK), tracker=tracker).engine_bytes

    fits, large = (
        convert(conv_net, ConvertConfig(check=QUICK, max_engine_bytes=limit), tracker=tracker)
        for limit in (size, size - 1)
    )

    assert (fits.verdict, large.verdict) == ("good", "bad")
    assert f"{size} bytes; at most {size - 1}" in large.reasons[0]
    run = tracker.load(large.run_id).info
    assert run.params["max_engine_bytes"] == str(size - 1) and run.verdict == "bad"


def test_incomplete_runs_are_not_reused(tracker: MemoryTracker, conv_net: Path) -> None:
    first = convert(conv_net, ConvertConfig(check=QUICK), tracker=tracker)
    key = tracker.info(first.run_id).tags[schema.Tag.BUILD_KEY]
    interrupted = tracker.start("conv", "half", kind="build", tags={schema.Tag.BUILD_KEY: key})

    again = convert(conv_net, ConvertConfig(check=QUICK), tracker=tracker)

    assert interrupted.id != again.reused_from == first.run_id


def test_default_store_is_used_without_a_tracker(
    conv_net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTOPS_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = convert(conv_net, ConvertConfig(check=QUICK))
    info = default_tracker().info(result.run_id)
    assert info.verdict == "good" and info.name.startswith("✓ FP32 ort ")
    assert info.name.removeprefix("✓ FP32 ort ").removesuffix(" conv") in info.fact(schema.Tag.DEVICE)


def test_timing_cache_and_replay_repeat_a_build(tracker: MemoryTracker, tmp_path: Path) -> None:
    path = models.transformer().write(tmp_path, "block")
    first = convert(path, ConvertConfig(check=QUICK), tracker=tracker)
    run = tracker.load(first.run_id)

    file = str(run.local_path(schema.Artifact.TIMING_CACHE))
    for cache in (file, f"run:{first.run_id}"):
        cached = ConvertConfig(check=QUICK, timing_cache=cache, rebuild=True)
        second = tracker.load(convert(path, cached, tracker=tracker).run_id)
        use = builds.load_build(second).timing_cache_use
        assert use.hits > 0 == use.misses
    replayed = ConvertConfig(check=QUICK, replay=str(run.local_path(schema.Artifact.TACTICS)))
    third = builds.load_build(tracker.load(convert(path, replayed, tracker=tracker).run_id))
    moved = tmp_path / "moved.json"
    moved.write_text(replace(third.tactics, backend_version="1.0").to_json())
    elsewhere = replace(replayed, replay=str(moved), carry_over=True)
    results = [convert(path, replace(elsewhere, rebuild=rebuild), tracker=tracker) for rebuild in (False, True)]

    assert results[0].reused_from and not results[1].reused_from
    for result in results:
        assert "choices recorded by 1.0 on" in result.carried and result.carried.endswith("changed: none")
        assert result.carried in "\n".join(result.body())
    assert builds.load_build(second).tactics.digest == third.tactics.digest == builds.load_build(run).tactics.digest


def test_layers_beyond_fp16_are_kept_by_data(tracker: MemoryTracker, tmp_path: Path) -> None:
    text = """(float[4,64] x) => (float[4,8] y) {
        [in] a = MatMul(x, w) [sq] b = Mul(a, a) [rt] c = Sqrt(b) [mm] y = MatMul(c, v)
    }"""
    weights = {"w": models.random(64, 64, scale=40), "v": models.random(64, 8, seed=1, scale=0.1)}
    path = models.Case(models.model(text, weights), {}, name="wide").write(tmp_path)
    np.save(tmp_path / "x.npy", models.random(4, 64, seed=2))
    ranges = CalibrationCache(algorithm="minmax", ranges=(TensorRange(name="b", amax=1.5e5),))
    (tmp_path / "ranges.json").write_bytes(ranges.to_bytes())
    half, data = BuildConfig(precision="fp16"), replace(QUICK, data=str(tmp_path / "x.npy"))
    configs = (
        ConvertConfig(build=half, check=QUICK),
        ConvertConfig(build=half, check=data),
        ConvertConfig(build=half, check=QUICK, calibration_data=str(tmp_path / "x.npy")),
        ConvertConfig(build=half, check=QUICK, calibration_cache=str(tmp_path / "ranges.json")),
    )
    plain, *measured = (convert(path, config, tracker=tracker) for config in configs)

    assert plain.verdict == "bad" and "no ranges show whether all values fit FP16" in "\n".join(plain.body())
    for result in measured:
        assert result.verdict in PASSED and "kept in FP32, since their values do not fit FP16: sq (b: " in result.ranges
        assert builds.load_build(tracker.load(result.run_id)).spec.config.keep == ("sq", "rt")
    assert "from 1 feed" in measured[0].ranges and "rt (b: 1.5e+05)" in measured[2].ranges

    # INT8 may use FP16 for the rest: what FP16 cannot hold is in neither.
    for lower_precision in ("fp16", "fp32"):
        eight = BuildConfig(precision="int8", keep=("mm",), options=TensorRTOptions(also=(lower_precision,)))
        fitted, _ = fit_precision(eight, CommandData(Model.load(path), data), None)
        assert fitted.keep == (("mm", "sq", "rt") if lower_precision == "fp16" else ("mm",))
        fp32_layers = layers_to_keep(Model.load(path).proto(), fitted)
        assert fp32_layers == ({"sq": "float32", "rt": "float32"} if lower_precision == "fp16" else {})


SCRIPT = """\
import numpy as np

with open({log!r}, "a") as file:
    file.write("loaded\\n")


def load_data():
    with open({log!r}, "a") as file:
        file.write("run\\n")
    for seed in range(4):
        yield {{"image": np.random.default_rng(seed).normal(size=(2, 3, 8, 8)).astype(np.float32)}}
"""


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_data_script_runs_once(precision: Precision, conv_net: Path, tracker: MemoryTracker, tmp_path: Path) -> None:
    script, calls = tmp_path / "loader.py", tmp_path / "calls.txt"
    script.write_text(SCRIPT.format(log=str(calls)))
    check = replace(QUICK, data=str(script))
    for calibration_data in {None, str(script) if precision == "int8" else None}:
        calls.write_text("")
        build = BuildConfig(precision=precision)
        config = ConvertConfig(build=build, check=check, calibration_data=calibration_data, rebuild=True)
        assert convert(conv_net, config, tracker=tracker).evaluation.evidence.feeds == 4
        assert calls.read_text().split() == ["loaded", "run"]


def test_calibrate_runs_a_data_script_once(conv_net: Path, tracker: MemoryTracker, tmp_path: Path) -> None:
    script, calls = tmp_path / "loader.py", tmp_path / "calls.txt"
    script.write_text(SCRIPT.format(log=str(calls)))
    result = calibrate(conv_net, CalibrateConfig(calibration_data=str(script), check=QUICK), tracker=tracker)
    assert result.engine.evaluation.evidence.feeds == 4
    assert calls.read_text().split() == ["loaded", "run"]


def test_sources_in_memory_are_distinguished(conv_net: Path) -> None:
    first, second = (ArraysInMemory.of([{"image": models.random(2, 3, 8, 8, seed=seed)}], "") for seed in (1, 2))
    model, check = Model.load(conv_net), replace(QUICK, data=first)
    same, other = (CommandData(model, check, calibration) for calibration in (first, second))
    assert same.calibration().digest() == same.feeds().digest() != other.calibration().digest()


def test_model_in_memory_is_converted(tracker: MemoryTracker) -> None:
    case = models.conv_net()
    config = ConvertConfig(check=CheckConfig(data=dict(case.feed)))
    result = convert(Model.from_proto(case.proto, "classifier"), config, tracker=tracker)

    run = tracker.load(result.run_id).info
    assert result.verdict == "good" and run.experiment == "classifier" and schema.Tag.MODEL_PATH not in run.tags


def test_8_bits_need_real_data(tracker: MemoryTracker, conv_net: Path, monkeypatch) -> None:
    monkeypatch.setattr(Search, "gain_over_fp32", lambda *_: "does not pay: 1.30 times the time of FP32")
    result = convert(conv_net, ConvertConfig(build=BuildConfig(precision="int8"), check=QUICK), tracker=tracker)
    assert result.next_step is None and "random data" in result.needed and "does not pay" in result.figures
    strict = replace(QUICK, tolerances=Tolerances(atol=1e-12, rtol=0))
    result = convert(conv_net, ConvertConfig(build=BuildConfig(precision="int8"), check=strict), tracker=tracker)
    assert result.verdict == "bad" and result.next_step is None and "real data to calibrate with" in result.needed
    assert result.reused_from and "does not pay" in result.figures

    real = replace(QUICK, data=ArraysInMemory.of([{"image": models.random(2, 3, 8, 8)}], ""))
    result = convert(conv_net, ConvertConfig(build=BuildConfig(precision="int8"), check=real), tracker=tracker)
    assert result.verdict == "good" and "does not pay" in result.figures
    assert result.next_step.verb == "convert" and "precision" not in result.next_step.arguments


def test_shapes_of_data_decide_a_build(tracker: MemoryTracker, tmp_path: Path) -> None:
    path = models.transformer().write(tmp_path, "block")

    def converted(name: str, *shape: int, seed: int = 0, precision: Precision = "fp32") -> ConvertResult:
        np.save(tmp_path / f"{name}.npy", models.random(*shape, seed=seed))
        check = replace(QUICK, data=str(tmp_path / f"{name}.npy"))
        return convert(path, ConvertConfig(build=BuildConfig(precision=precision), check=check), tracker=tracker)

    first, same, other = converted("a", 2, 5, 16), converted("b", 2, 5, 16, seed=1), converted("c", 3, 4, 16)
    isolated = converted("d", 3, 4, 16, precision="fp16")

    assert same.reused_from == first.run_id and other.reused_from is None
    for result, shape in ((first, (2, 5, 16)), (other, (3, 4, 16)), (isolated, (3, 4, 16))):
        build = builds.load_build(tracker.load(result.run_id))
        assert build.spec.timed_shapes == (("x", shape),)
        timings = TimingCache.from_bytes(build.timing_cache or b"").timings
        assert timings and all(key.endswith(str({"x": shape})) for key in timings)


def test_unsuitable_timing_caches_are_refused(tracker: MemoryTracker, conv_net: Path) -> None:
    run = tracker.start("notes", "no build", kind="compare")
    environment = engine_backend("onnxruntime").environment()
    run.log_json(environment, schema.Artifact.ENVIRONMENT)
    run.finish("good")
    with pytest.raises(errors.ConfigError, match="has no timing cache"):
        convert(conv_net, ConvertConfig(check=QUICK, timing_cache=f"run:{run.id}"), tracker=tracker)

    built = convert(conv_net, ConvertConfig(check=QUICK), tracker=tracker).run_id
    elsewhere = replace(environment, device="Another CPU")
    with pytest.raises(errors.TimingCacheError) as caught:
        read_timing_cache(f"run:{built}", tracker, elsewhere)
    assert environment.device_key in str(caught.value)
    assert elsewhere.device_key in str(caught.value)


@pytest.mark.usefixtures("children")
def test_isolated_builds_equal_others_or_time_out(tracker: MemoryTracker, conv_net: Path) -> None:
    config = ConvertConfig(check=QUICK, isolated=True, timeout_seconds=600)
    in_process = convert(conv_net, ConvertConfig(check=QUICK), tracker=MemoryTracker())
    isolated = convert(conv_net, config, tracker=tracker)
    with pytest.raises(errors.WorkerError, match=r"0\.001 s"):
        convert(conv_net, replace(config, timeout_seconds=0.001, rebuild=True), tracker=tracker)

    assert isolated.verdict == in_process.verdict == "good" and isolated.spec_sha256 == in_process.spec_sha256
    assert [run.status for run in tracker.find()] == ["failed", "finished"]


def test_only_failed_builds_leave_a_run(tracker: MemoryTracker, tmp_path: Path, conv_net: Path) -> None:
    (tmp_path / "short.onnx").write_bytes(conv_net.read_bytes()[:-40])
    external = models.write_external(models.conv_net(), tmp_path / "inner")
    (tmp_path / "inner" / "weights.bin").unlink()
    np.savez(tmp_path / "x.npz", image=np.zeros((1, 2, 2), np.float32))
    odd_feed = ConvertConfig(check=replace(QUICK, data=str(tmp_path / "x.npz")))

    for path, config, kind, text in (
        (tmp_path / "short.onnx", ConvertConfig(), errors.InvalidModelError, r"short\.onnx"),
        (tmp_path / "absent.onnx", ConvertConfig(), errors.InvalidModelError, r"absent\.onnx"),
        (external, ConvertConfig(), errors.InvalidModelError, r"weights\.bin"),
        (conv_net, odd_feed, errors.InputError, r"\(1, 2, 2\)"),
    ):
        with pytest.raises(kind, match=text):
            convert(path, config, tracker=tracker)
    assert tracker.find() == []

    with pytest.raises(errors.EngineBuildError, match="Frobnicate") as caught:
        convert(models.no_kernel().write(tmp_path, "odd"), tracker=tracker)
    [failed] = tracker.find()
    assert failed.tags[schema.Tag.ERROR].endswith(str(caught.value))


@pytest.mark.parametrize("error", [errors.TrackingUnavailableError, errors.NoRoomError], ids=["away", "full"])
def test_runs_are_whole_after_store_failures(tmp_path: Path, error: type[errors.TrackingError]) -> None:
    assert list(failures(error, 5, tmp_path)) == []


def test_full_store_warns_and_keeps_the_verdict(tmp_path: Path, template: Path, monkeypatch, caplog, capsys) -> None:
    model, store = models.identity().write(tmp_path), copy_store(template, tmp_path / "mlruns")
    monkeypatch.setenv("TRTOPS_SPOOL", str(tmp_path / "spool"))

    def full(*args: object, **named: object) -> None:
        raise errors.NoRoomError("full")

    with monkeypatch.context() as context:
        context.setattr("trtops.tracking.mlflow.MlflowTracker.create", full)
        assert main(["convert", str(model), "--convert-to", "ort", "--experiment", "e", "--store", str(store)]) == 0
    assert "goes to the spool" in caplog.text and "verdict: good" in capsys.readouterr().out
    assert main(["store", "upload", "--root", str(store)]) == 0
    assert contents(MlflowTracker(store))


def test_engines_are_written_once_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.identity().write(tmp_path)
    store, output = tmp_path / "mlruns", tmp_path / "out.ort"
    words = ["convert", str(model), "--convert-to", "ort", "--experiment", "e", "--store", str(store)]
    output.write_bytes(b"the engine of yesterday")

    def fail(*args: object) -> None:
        raise errors.InferenceError("it does not run")

    with monkeypatch.context() as context:
        context.setattr("trtops.ops.engines.convert.evaluate", fail)
        assert main([*words, "-o", str(output)]) == 3
    assert output.read_bytes() == b"the engine of yesterday"

    (tmp_path / "file").touch()
    assert main([*words, "-o", str(tmp_path / "file" / "out.ort")]) == 2  # before anything is built
    assert main([*words, "--rebuild", "-o", str(output), "--save-tactics", str(tmp_path / "t.json")]) == 0
    assert json.loads((tmp_path / "t.json").read_text())

    runs = MlflowTracker(store).find("e")
    assert sorted(info.status for info in runs) == ["failed", "finished"]
    assert runs[0].verdict == "good"
