"""Calibration as an op: the cache, its run, the engines evaluated with it, and what bad data leaves behind."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from examples.digits import Digits
from tests import models
from trtops import calibrate, errors
from trtops.calibration import CalibrationCache
from trtops.calibration.data import FeedDigest
from trtops.ops.engines.calibrate import CalibrateConfig
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.data import golden_outputs
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking.builds import load_cache
from trtops.tracking.memory import MemoryTracker

QUICK = BuildConfig(precision="int8", options=OnnxRuntimeOptions(tactics=(), timing_iterations=1))
SMALL_CHECK = CheckConfig(latency_runs=0, plots="never")


def digits_config(digits: Digits, **changes) -> CalibrateConfig:
    check = replace(SMALL_CHECK, data=str(digits.images), labels=str(digits.labels))
    return CalibrateConfig(
        **{"calibration_data": str(digits.calibration), "build": QUICK, "check": check, "batch": 16} | changes
    )


def images(count: int, batch: int = 4):
    for seed in range(count):
        yield {"image": models.random(batch, 3, 8, 8, seed=seed)}


@pytest.fixture
def conv_net(tmp_path: Path) -> Path:
    return models.conv_net().write(tmp_path)


@pytest.mark.parametrize("algorithm", ["minmax", "entropy"])
def test_int8_demo_is_within_one_point(digits: Digits, algorithm) -> None:
    result = calibrate(digits.model, digits_config(digits, algorithm=algorithm), tracker=MemoryTracker())

    (top1,) = result.engine.evaluation.tasks
    assert result.samples == 64 and result.feeds == 4
    assert top1.samples == 599 and abs(top1.loss) <= 0.01
    assert result.verdict == "good"


class CountedFeeds:
    """Feeds whose readings are counted."""

    def __init__(self, feeds) -> None:
        self.feeds, self.starts, self.read = list(feeds), 0, 0

    def __iter__(self):
        self.starts += 1
        for feed in self.feeds:
            self.read += 1
            yield feed


def test_default_compares_algorithms_in_one_pass(conv_net: Path) -> None:
    tracker, data = MemoryTracker(), CountedFeeds(images(6))
    config = CalibrateConfig(build=QUICK, check=SMALL_CHECK)

    result = calibrate(conv_net, config, calibration_data=data, tracker=tracker)

    assert (data.starts, data.read) == (1, 6) and result.comparison is not None
    error = {algorithm_error.algorithm: algorithm_error.error for algorithm_error in result.comparison.errors}
    assert result.algorithm == result.comparison.chosen and error[result.algorithm] <= 1.01 * min(error.values())
    assert (result.comparison.data, result.comparison.feeds) == ("held-out calibration data", 3)
    named = calibrate(
        conv_net, replace(config, algorithm=result.algorithm), calibration_data=images(6), tracker=tracker
    )
    assert named.cache_sha256 == result.cache_sha256 and named.comparison is None

    run = tracker.load(result.run_id)
    assert json.loads(run.read_bytes("calibration/algorithms.json"))["data"] == [
        list(r) for r in result.comparison.rows()
    ]
    assert {name: run.info.metrics["calibration", "error", name] for name in error} == error
    assert run.info.params["chosen_algorithm"] == result.algorithm and run.info.params["algorithm"] == "best"
    page = result.page()
    assert (
        result.comparison.sentence() in page and f"| {result.algorithm} | {error[result.algorithm]:.4g} | yes |" in page
    )
    # The engine's own run has the ranges, so that it can be rebuilt from them.
    built = tracker.load(result.engine.run_id)
    assert CalibrationCache.from_bytes(built.read_bytes("caches/calibration.cache")).digest == result.cache_sha256


def test_algorithms_are_compared_on_check_data(conv_net: Path, tmp_path: Path, monkeypatch) -> None:
    reference_run = Mock(wraps=golden_outputs)
    monkeypatch.setattr("trtops.ops.engines.request.golden_outputs", reference_run)
    np.save(tmp_path / "held_out.npy", models.random(4, 3, 8, 8, seed=90))
    check = replace(SMALL_CHECK, data=str(tmp_path / "held_out.npy"))
    config = CalibrateConfig(build=QUICK, check=check)

    result = calibrate(conv_net, config, calibration_data=images(6), tracker=MemoryTracker())
    assert result.comparison is not None and reference_run.call_count == 1
    assert (result.comparison.data, result.comparison.feeds) == ("check data", 1)
    alone = calibrate(conv_net, replace(config, check=SMALL_CHECK), calibration_data=images(1), tracker=MemoryTracker())
    assert "It was not held out: the calibration data is a single feed." in alone.page()


def test_data_of_other_shapes_than_given_is_refused(conv_net: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "eight.npy", models.random(8, 3, 8, 8))
    four = CalibrateConfig(build=QUICK, check=replace(SMALL_CHECK, input_shapes={"image": (4, -1, -1, -1)}))
    for data, check, message in (
        (images(3, batch=8), four.check, r"feed 1: .*shape: \(8, 3, 8, 8\)"),
        (images(3), replace(four.check, data=str(tmp_path / "eight.npy")), r"shape \(8, 3, 8, 8\)"),
        (images(3), replace(SMALL_CHECK, input_shapes={"picture": (4, 3, 8, 8)}), "'picture', which is no input"),
    ):
        with pytest.raises(errors.TrtopsError, match=message):
            calibrate(conv_net, replace(four, check=check), calibration_data=data, tracker=MemoryTracker())
    result = calibrate(conv_net, four, calibration_data=images(3), tracker=MemoryTracker())
    evidence = result.engine.evaluation.evidence
    assert evidence is not None and [dict(entry.shapes) for entry in evidence.shapes] == [{"image": (4, 3, 8, 8)}]


def test_calibration_run_holds_all_artifacts(digits: Digits) -> None:
    tracker = MemoryTracker()
    result = calibrate(digits.model, digits_config(digits, algorithm="percentile", percentile=99.0), tracker=tracker)

    run = tracker.load(result.run_id)
    ours = CalibrationCache.from_bytes(run.read_bytes("caches/calibration.json"))
    text = CalibrationCache.from_bytes(run.read_bytes("caches/calibration.cache"))
    assert ours.digest == result.cache_sha256 and ours.percentile == 99.0
    assert [e.name for e in text.ranges] == [e.name for e in ours.ranges]
    assert [e.amax for e in text.ranges] == pytest.approx([e.amax for e in ours.ranges])
    table = json.loads(run.read_bytes("calibration/ranges.json"))
    assert table["columns"] == ["tensor", "amax", "scale", "lowest", "highest", "clipped"]
    rows = {row[0]: row[1:] for row in table["data"]}
    assert rows["relu_0"][2] == 0.0 and 0 < rows["relu_0"][4] <= 0.01
    assert json.loads(run.info.tags["mlflow.loggedArtifacts"]) == [{"path": "calibration/ranges.json", "type": "table"}]
    assert tracker.info(result.engine.run_id).metrics["accuracy", "top1"] == result.engine.evaluation.tasks[0].actual
    assert run.info.metrics["calibration", "samples"] == 64
    digest, array = FeedDigest(), np.load(digits.calibration)["image"]
    for start in range(0, 64, 16):
        digest.add({"image": array[start : start + 16]})
    assert result.data_sha256 == digest.hexdigest()
    children = tracker.find(parent=result.run_id)
    assert [child.id for child in children] == [result.engine.run_id]
    int8 = tracker.load(result.engine.run_id)
    assert int8.read_bytes("caches/calibration.cache") == ours.to_bytes()


def test_failed_calibration_keeps_its_part(conv_net: Path) -> None:
    class Loader:
        def __iter__(self):
            yield from images(2)
            raise ConnectionResetError("bucket closed")

    tracker = MemoryTracker()
    with pytest.raises(errors.CalibrationError, match="bucket closed") as caught:
        calibrate(conv_net, CalibrateConfig(build=QUICK, check=SMALL_CHECK), calibration_data=Loader(), tracker=tracker)

    [run] = tracker.find()
    assert run.status == "failed" and "bucket closed" in run.tags["trtops.error"]
    assert f"run {run.id}, caches/calibration.partial.json" in str(caught.value)
    partial = CalibrationCache.from_bytes(tracker._runs[run.id].artifacts["caches/calibration.partial.json"])
    assert (partial.complete, partial.feeds, partial.samples) == (False, 2, 8)


def test_bad_data_and_algorithms_are_refused(conv_net: Path) -> None:
    for data, message in (
        ([], "there is no data"),
        (images(1, batch=1), "has 1 sample"),
        ([{"image": np.full((2, 3, 8, 8), np.nan, np.float32)}], "384 values that are NaN or infinite"),
        ([{"image": np.zeros((2, 3, 8, 9), np.float32)}], r"shape: \(2, 3, 8, 9\)"),
    ):
        tracker = MemoryTracker()
        with pytest.raises(errors.CalibrationError, match=message):
            calibrate(conv_net, CalibrateConfig(build=QUICK, check=SMALL_CHECK), calibration_data=data, tracker=tracker)
        assert [run.status for run in tracker.find()] == ["failed"]
    with pytest.raises(errors.ConfigError, match="There is no calibration data"):
        calibrate(conv_net, CalibrateConfig(build=QUICK), tracker=MemoryTracker())
    with pytest.raises(errors.ConfigError, match="Did you mean 'entropy'"):
        CalibrateConfig(algorithm="entrophy")  # type: ignore[arg-type]


def test_too_large_model_is_refused_before_calibration(conv_net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtops.backend.onnx.model._LARGE_BYTES", -1)
    feeds = CountedFeeds(images(2))
    config = CalibrateConfig(calibration_data=feeds, build=QUICK, min_samples=1)
    with pytest.raises(errors.EngineBuildError, match=r"2 GiB.*TensorRT"):
        calibrate(conv_net, config, tracker=MemoryTracker())
    assert feeds.read == 0


def test_caches_are_written_and_loaded(conv_net: Path, tmp_path: Path) -> None:
    tracker, progress, text = MemoryTracker(), Mock(), tmp_path / "first.cache"
    config = CalibrateConfig(build=QUICK, check=SMALL_CHECK, algorithm="minmax")

    written = replace(config, output=str(text))
    first = calibrate(conv_net, written, calibration_data=list(images(3)), tracker=tracker, progress=progress)
    assert [call.args[0] for call in progress.call_args_list] == [4, 8, 12]
    loud = [{"image": feed["image"] * 3} for feed in images(3)]
    second = calibrate(conv_net, config, calibration_data=loud, tracker=tracker)

    assert text.read_bytes().startswith(b"TRT-8600-EntropyCalibration2\nimage: ")
    first_cache, second_cache = (load_cache(f"run:{run.run_id}", tracker) for run in (first, second))
    ranges = [c.by_name()["image"].amax for c in (load_cache(str(text)), first_cache, second_cache)]
    assert ranges == pytest.approx([ranges[0], ranges[0], 3 * ranges[0]])
    with pytest.raises(errors.ConfigError, match=r"nowhere\.cache"):
        load_cache(str(tmp_path / "nowhere.cache"))


def test_calibration_data_evaluates_engines_by_default(conv_net: Path, tmp_path: Path) -> None:
    feeds = [{"image": 100 + feed["image"]} for feed in images(3)]  # nothing like random data
    folder = tmp_path / "data"
    folder.mkdir()
    for number, feed in enumerate(feeds):
        np.save(folder / f"{number}.npy", feed["image"])
    same = ConvertConfig(build=QUICK, check=replace(SMALL_CHECK, data=str(folder)), calibration_data=str(folder))
    evaluated = convert(conv_net, same, tracker=MemoryTracker())
    config = CalibrateConfig(build=QUICK, check=SMALL_CHECK)

    for result in (
        calibrate(conv_net, config, calibration_data=iter(feeds), tracker=MemoryTracker()),
        calibrate(conv_net, replace(config, calibration_data=str(folder)), tracker=MemoryTracker()),
    ):
        [statistics] = [output.statistics for output in result.engine.evaluation.report.outputs]
        assert statistics.elements == 3 * 4 * 10 and result.verdict == evaluated.verdict
        assert statistics.scale == evaluated.evaluation.report.outputs[0].statistics.scale
