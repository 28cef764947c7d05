"""Models and engines beyond 2 GiB, with the limit lowered: weights stay in files, and what comes out is the same."""

from __future__ import annotations

import dataclasses
import pickle
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from tests import models
from trtops import MemoryTracker, errors
from trtops.backend.base import Build
from trtops.backend.engines import reference_runner
from trtops.backend.onnx import external
from trtops.backend.onnx.emulate import emulate_low_precision
from trtops.backend.onnx.model import Model, is_lean, model_digest, raw_bytes
from trtops.backend.onnx.precision import lower_precision
from trtops.backend.onnx.save import save_model, serialize
from trtops.backend.onnxrt import large
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.reference import reference_outputs
from trtops.backend.onnxrt.session import READS_LEAN
from trtops.mapped import file_of
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.compare import CompareConfig, compare
from trtops.ops.model.inspect.models import inspect_model
from trtops.spec import BuildConfig, OnnxRuntimeOptions, Precision
from trtops.tracking.builds import load_build, log_build, log_spec

needs_engines = pytest.mark.skipif(not READS_LEAN, reason="engines beyond 2 GiB need ONNX Runtime 1.21")
QUICK = OnnxRuntimeOptions(timing_iterations=1, intra_op_threads=1, tactics=())
CASES = {"conv": models.conv_net, "transformer": models.transformer, "branch": models.branch, "loop": models.loop}


@pytest.fixture
def limit(large_models: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is large, and so is every file."""
    monkeypatch.setattr("trtops.mapped.MOST_READ", 64)


def written(case: models.Case, folder: Path) -> Path:
    return models.write_external(case, folder, threshold=1)


def built(path: Path, precision: Precision = "fp32", **given: Any) -> Build:
    config = BuildConfig(precision=precision, options=QUICK)
    return OnnxRuntimeBackend().build(Model.load(path), config, **given)


def outputs(build: Build, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
    with OnnxRuntimeBackend().runner(build.engine) as runner:
        return {name: np.array(array) for name, array in runner.infer(feed).items()}


def same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


@needs_engines
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_engine_beyond_the_limit_of_the_format_computes_the_same_in_the_same_kernels(
    name: str, precision: Precision, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    case = CASES[name]()
    path = written(case, tmp_path / "model")
    usual = built(path, precision)
    expected = outputs(usual, case.feed)
    request.getfixturevalue("temporary_files")
    request.getfixturevalue("limit")

    build = built(path, precision)

    assert isinstance(build.engine.plan, memoryview) and large.is_packed(build.engine.plan)
    assert not large.is_packed(usual.engine.plan)
    assert same(outputs(build, case.feed), expected)
    if (name, precision) == ("branch", "fp16"):
        return  # whose bodies ONNX Runtime leaves with more Casts, of names that are there twice, in what is no ORT file
    assert [(x.op, x.tactic, x.precision) for x in build.layers] == [
        (x.op, x.tactic, x.precision) for x in usual.layers
    ]
    assert [layer.name for layer in build.layers] == [layer.name for layer in usual.layers]


@needs_engines
def test_int8_is_made_of_weights_in_files(
    tmp_path: Path, request: pytest.FixtureRequest, temporary_files: Path
) -> None:
    case = models.conv_net()
    path = written(case, tmp_path / "model")
    expected = built(path, "int8", calibration_data=[case.feed] * 4)
    request.getfixturevalue("limit")

    build = built(path, "int8", calibration_data=[case.feed] * 4)

    assert build.calibration_cache == expected.calibration_cache
    assert same(outputs(build, case.feed), outputs(expected, case.feed))


@needs_engines
def test_a_model_in_memory_may_be_large_as_well(limit: None, temporary_files: Path) -> None:
    case = models.conv_net()
    build = OnnxRuntimeBackend().build(Model.from_proto(case.proto), BuildConfig(options=QUICK))

    assert isinstance(build.engine.plan, memoryview)
    with reference_runner(Model.from_proto(case.proto)) as runner:
        golden = runner.infer(case.feed)
    for name, array in outputs(build, case.feed).items():
        np.testing.assert_allclose(array, golden[name], rtol=1e-4, atol=1e-5)


@needs_engines
def test_a_large_engine_goes_through_the_memory_and_to_other_processes(
    limit: None, temporary_files: Path, tmp_path: Path
) -> None:
    case = models.conv_net()
    build = built(written(case, tmp_path / "model"))
    expected = outputs(build, case.feed)
    tracker = MemoryTracker()
    run = tracker.start("large", "one", kind="build")
    log_spec(run, build.spec, OnnxRuntimeBackend().environment())
    log_build(run, build, ".ort")
    run.finish("good")

    loaded = load_build(tracker.load(run.id))
    sent = pickle.loads(pickle.dumps(build.engine))

    assert isinstance(loaded.engine.plan, memoryview) and loaded.engine.plan == build.engine.plan
    in_memory = dataclasses.replace(build.engine, plan=bytes(build.engine.plan))
    assert isinstance(sent.plan, memoryview) and file_of(sent.plan) != file_of(build.engine.plan)
    for engine in (loaded.engine, sent, in_memory):
        assert same(outputs(dataclasses.replace(build, engine=engine), case.feed), expected)


@needs_engines
def test_convert_builds_evaluates_and_rebuilds_a_large_model(
    limit: None, temporary_files: Path, tmp_path: Path
) -> None:
    path = written(models.conv_net(), tmp_path / "model")
    config = ConvertConfig(build=BuildConfig(options=QUICK), check=CheckConfig(latency_runs=2))
    tracker, engines = MemoryTracker(), []

    result = convert(path, config, tracker=tracker, built=lambda build: engines.append(bytes(build.engine.plan)))

    assert result.verdict == "good" and result.engine_bytes == len(engines[0])
    assert convert(path, config, tracker=tracker).reused_from == result.run_id


@needs_engines
def test_a_large_engine_is_compared_with_its_model(limit: None, temporary_files: Path, tmp_path: Path) -> None:
    path = written(models.conv_net(), tmp_path / "model")
    tracker = MemoryTracker()
    file = tmp_path / "engine.ort"
    config = ConvertConfig(build=BuildConfig(options=QUICK), check=CheckConfig(latency_runs=2))
    run = convert(path, config, tracker=tracker, built=lambda build: file.write_bytes(build.engine.plan)).run_id

    for side in (file, f"run:{run}"):
        result = compare(side, path, CompareConfig(check=CheckConfig(latency_runs=2)), tracker=tracker)
        assert result.verdict == "good" and result.evaluation.latency is not None


@needs_engines
def test_a_large_engine_is_inspected(limit: None, temporary_files: Path, tmp_path: Path) -> None:
    build = built(written(models.conv_net(), tmp_path / "model"))
    file = tmp_path / "engine.ort"
    file.write_bytes(build.engine.plan)

    text = inspect_model(file, show={"layers"}).text()

    assert f"{len(build.layers)} nodes" in text and "Conv" in text


@needs_engines
def test_a_disk_without_room_for_a_large_engine_is_named_before_anything_is_written(
    limit: None, temporary_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(models.conv_net(), tmp_path / "model")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=10))

    with pytest.raises(errors.EngineBuildError, match=rf"{temporary_files} cannot take the engine.*TMPDIR"):
        built(path)


@needs_engines
@pytest.mark.parametrize("cut", [20, 200, 2000])
def test_a_damaged_large_engine_is_refused(cut: int, limit: None, temporary_files: Path, tmp_path: Path) -> None:
    build = built(written(models.conv_net(), tmp_path / "model"))
    plan = bytes(build.engine.plan)
    damaged = plan[:cut] + plan[-40:]
    engine = dataclasses.replace(build.engine, plan=damaged, options={})

    with pytest.raises(errors.EngineLoadError), OnnxRuntimeBackend().runner(engine):
        pass


@needs_engines
def test_weights_that_a_large_engine_says_are_elsewhere_are_refused(
    limit: None, temporary_files: Path, tmp_path: Path
) -> None:
    build = built(written(models.conv_net(), tmp_path / "model"))
    plan = bytes(build.engine.plan)
    for location in (b"../eight", b"/weight/"):
        assert plan.count(large.WEIGHTS.encode()) >= 1
        elsewhere = plan.replace(b"weights", location[:7])
        engine = dataclasses.replace(build.engine, plan=elsewhere, options={})
        with pytest.raises(errors.EngineLoadError, match="is not in it"), OnnxRuntimeBackend().runner(engine):
            pass


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_older_onnx_runtime_is_told_to_be_too_old_for_it(
    precision: Precision, limit: None, temporary_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtops.backend.onnxrt.large.READS_LEAN", False)

    with pytest.raises(errors.EngineBuildError, match=r"2 GiB.*ONNX Runtime 1.21"):
        built(written(models.conv_net(), tmp_path / "model"), precision)


def test_an_older_onnx_runtime_is_given_lean_models_as_files(
    limit: None, temporary_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtops.backend.onnxrt.session.READS_LEAN", False)
    case = models.transformer()
    lean = Model.load(written(case, tmp_path / "model")).proto(lean=True)

    assert same(reference_outputs(lean, [case.feed])[0], reference_outputs(case.proto, [case.feed])[0])


def test_a_lean_model_is_the_model_it_was_read_from(limit: None, tmp_path: Path) -> None:
    case = models.transformer()
    model = Model.load(written(case, tmp_path / "model"))
    lean = model.proto(lean=True)

    assert is_lean(lean) and not is_lean(model.proto())
    assert model_digest(lean) == model.info.sha256
    assert serialize(lean) == serialize(lean) and len(serialize(lean)) > len(lean.SerializeToString())
    for name, folder in (("inside.onnx", None), ("beside.onnx", "")):
        save_model(lean, tmp_path / name, external_data_path=folder)
        assert Model.load(tmp_path / name).info.sha256 == model.info.sha256
    inside = {tensor.name: tensor for tensor in case.proto.graph.initializer}
    for tensor in lean.graph.initializer:
        assert raw_bytes(tensor) == raw_bytes(inside[tensor.name])
    assert same(reference_outputs(lean, [case.feed])[0], reference_outputs(case.proto, [case.feed])[0])


def test_a_lean_model_whose_file_has_gone_says_so(limit: None, tmp_path: Path) -> None:
    path = written(models.transformer(), tmp_path / "model")
    lean = Model.load(path).proto(lean=True)
    (path.parent / "weights.bin").unlink()

    for use in (lambda: model_digest(lean), lambda: reference_outputs(lean, [])):
        with pytest.raises(errors.ExternalDataError, match="is gone"):
            use()


def test_an_anchor_in_a_file_is_a_name_like_any_other(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(64))
    path = written(models.transformer(), tmp_path / "model")
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        if external.is_external(tensor):
            external.put_place(tensor, f"anchor-{'0' * 32}:{secret}", 0, external.expected_bytes(tensor) or 0)
    path.write_bytes(proto.SerializeToString())

    with pytest.raises(errors.ExternalDataError, match=r"Refused|does not exist"):
        Model.load(path)


@pytest.mark.parametrize("large_weight", [0, 1 << 40])
def test_sixteen_bit_weights_in_files_are_rounded_like_others(
    large_weight: int, limit: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtops.backend.onnx.emulate._LARGE_WEIGHT", large_weight)
    case = models.transformer()
    expected = lower_precision(case.proto, "fp16").model
    with tempfile.TemporaryDirectory() as folder:
        lean = Model.load(written(case, tmp_path / "model")).proto(lean=True)
        found = lower_precision(lean, "fp16", weights=Path(folder)).model
        assert is_lean(found) and model_digest(found) == model_digest(expected)
        for model in (found, expected):
            emulate_low_precision(model)
        assert same(reference_outputs(found, [case.feed])[0], reference_outputs(expected, [case.feed])[0])
