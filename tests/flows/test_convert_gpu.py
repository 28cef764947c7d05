"""The flows on real TensorRT and a GPU, with a real Prefect server and a real MLflow store."""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from flows.accuracy import accuracy
from flows.calibrate import calibrate
from flows.compare import compare
from flows.convert import convert
from flows.debug_build import debug_build
from flows.diff_tactics import diff_tactics
from flows.precision import precision
from flows.prove import prove
from flows.reduce import reduce
from tests import models
from trtops import errors
from trtops.backend.trt import current_gpu
from trtops.calibration import CalibrationCache
from trtops.comparator.report import Tolerances
from trtops.flows.slots import limit_name
from trtops.json import save_json
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.engines.calibrate import CalibrateConfig
from trtops.ops.engines.convert import ConvertConfig, ConvertResult
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.search.accuracy import AccuracyConfig
from trtops.ops.search.precision import PrecisionConfig
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking import builds
from trtops.tracking.schema import Artifact, Tag
from trtops.tracking.store import default_tracker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CHECK = CheckConfig(tolerances=Tolerances(atol=0.05, rtol=0.05), latency_runs=5, warm_up=1, plots="never")
FP16 = BuildConfig(precision="fp16", options=TensorRTOptions(optimization_level=2))
QUICK = ConvertConfig(build=FP16, check=CHECK)
# Where the verdict is looked at: left alone, the builder may find FP32 faster, and an FP16 engine in FP32 is bad.
OBEYED = replace(
    FP16,
    options=replace(FP16.options, layer_precisions=(("conv[01]", "float16"),), precision_constraints="obey"),
)
SHAPE = (8, 64, 28, 28)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two convolutions: nothing of it is Myelin's, whose timings 8.6 does not read back from a cache."""
    return convolutions(tmp_path, "convolutions")


def convolutions(folder: Path, name: str, seed: int = 0) -> Path:
    weights = {f"w{i}": models.random(64, 64, 3, 3, seed=seed + i, scale=0.06) for i in range(2)}
    proto = models.model(
        """(float[8,64,28,28] x) => (float[8,64,28,28] y) {
            [conv0] a = Conv<pads = [1,1,1,1]>(x, w0)
            [relu0] b = Relu(a)
            [conv1] y = Conv<pads = [1,1,1,1]>(b, w1)
        }""",
        weights,
        name=name,
    )
    path = folder / f"{name}.onnx"
    onnx.save(proto, path)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "images.json"
    save_json([{"x": models.random(*SHAPE, seed=100 + i)} for i in range(4)], str(path))
    return path


def test_tensorrt_run_is_as_whole_as_onnxruntimes(store: Path, tmp_path: Path) -> None:
    path = models.conv_net().write(tmp_path, "small")

    result = convert(path, backend="tensorrt")
    again = convert(path, backend="tensorrt")
    same = compare(f"run:{result.run_id}", str(path))

    run = default_tracker().load(result.run_id)
    assert result.verdict == again.verdict == same.verdict == "good"
    assert again.reused_from == result.run_id and again.engine_sha256 == result.engine_sha256
    assert run.info.experiment == "small" and run.info.tags[Tag.PREFECT_FLOW_RUN]
    assert {entry.path for entry in run.manifest.artifacts} >= {
        "engine/engine.engine",
        "model/small.onnx",
        Artifact.TACTICS,
        Artifact.LAYERS,
        Artifact.TIMING_CACHE,
        Artifact.ACCURACY,
        Artifact.SPEC,
        Artifact.ENVIRONMENT,
        Artifact.BUILD_LOG,
    }
    assert "[INFO]" in run.read_bytes(Artifact.BUILD_LOG).decode()
    metrics = run.info.metrics
    assert metrics["build", "seconds"] > 0 and metrics["build", "engine_bytes"] == result.engine_bytes
    assert metrics["build", "layers"] > 0 and 0 < metrics["tactics", "coverage"] <= 1
    assert metrics["latency", "p50_ms"] > metrics["latency", "device_p50_ms"] > 0
    assert metrics["error", "scores", "max_abs"] < 1e-4
    build = builds.load_build(run)
    assert build.tactics.choices and build.layers and build.timing_cache


def test_tags_name_gpu_without_uuid(store: Path, model: Path) -> None:
    tags = default_tracker().info(convert(model, QUICK).run_id).tags

    gpu = current_gpu()
    print({name: value for name, value in tags.items() if name.startswith("trtops.")})
    assert tags[Tag.BACKEND] == "tensorrt" and re.fullmatch(r"\d+\.\d+\.\d+.*", tags[Tag.BACKEND_VERSION])
    assert (tags[Tag.DEVICE], tags[Tag.COMPUTE_CAPABILITY]) == (gpu.name, gpu.compute_capability)
    assert tags[Tag.CUDA] == gpu.cuda
    assert tags["trtops.device.uuid_sha256"] == gpu.uuid_sha256 and len(gpu.uuid_sha256) == 16
    assert not any("GPU-" in value for value in tags.values())
    if shutil.which("nvidia-smi"):
        assert tags[Tag.DRIVER] == gpu.driver
        assert int(tags["trtops.device.sm_clock_mhz"]) > 0 and int(tags["trtops.device.memory_clock_mhz"]) > 0
        assert int(tags["trtops.device.other_processes"]) >= 0


def test_replay_repeats_choices(store: Path, model: Path) -> None:
    first = convert(model, QUICK)
    run = default_tracker().load(first.run_id)

    second = convert(model, replace(QUICK, replay=str(run.local_path(Artifact.TACTICS))))

    built, again = (builds.load_build(default_tracker().load(r.run_id)) for r in (first, second))
    assert second.reused_from is None and second.spec_sha256 != first.spec_sha256
    assert [x.name for x in again.layers] == [x.name for x in built.layers]
    chosen = {c.layer: c.tactic for c in again.tactics.choices if c.replayable}
    assert chosen == {c.layer: c.tactic for c in built.tactics.choices if c.replayable} and len(chosen) >= 2


def test_fp16_that_no_layer_computes_in_is_bad(store: Path, model: Path) -> None:
    fp32 = tuple((f"conv{number}", "float32") for number in range(2))
    options = replace(FP16.options, layer_precisions=fp32, precision_constraints="obey")

    result = convert(model, replace(QUICK, build=replace(FP16, options=options)), attribute_error=True)

    info = default_tracker().info(result.run_id)
    assert result.verdict == info.verdict == "bad"
    [reason] = result.reasons
    assert reason.startswith("No FP16 engine: Of 2 kernels 2 in FP32. 0% compute in the requested FP16")
    assert info.tags[Tag.ATTRIBUTION] == "not in its precision"


def test_timing_cache_of_run_saves_timing(store: Path, model: Path) -> None:
    unwatched = replace(QUICK, build=replace(FP16, options=replace(FP16.options, record_tactics=False)))
    first = convert(model, unwatched)
    run = default_tracker().load(first.run_id)

    second = convert(model, replace(unwatched, timing_cache=str(run.local_path(Artifact.TIMING_CACHE))))

    metrics, before = default_tracker().info(second.run_id).metrics, run.info.metrics
    print(before["build", "seconds"], metrics["build", "seconds"])
    assert before["timing_cache", "misses"] > 0
    assert metrics["timing_cache", "hits"] > 0 and metrics["timing_cache", "misses"] == 0
    assert ("timing_cache", "saved_seconds") in metrics
    assert builds.load_build(default_tracker().load(second.run_id)).layers == builds.load_build(run).layers


def test_int8_is_built_from_calibration_cache(store: Path, model: Path, images: Path) -> None:
    evaluated = replace(CHECK, data=str(images), tolerances=Tolerances(atol=np.inf, rtol=np.inf, min_cosine=0.95))
    config = ConvertConfig(build=replace(FP16, precision="int8"), check=evaluated, calibration_data=str(images))
    first = convert(model, config)
    run = default_tracker().load(first.run_id)

    second = convert(model, replace(config, calibration_cache=str(run.local_path(Artifact.CALIBRATION_CACHE))))

    cache = run.read_bytes(Artifact.CALIBRATION_CACHE)
    again = default_tracker().load(second.run_id)
    assert first.verdict == second.verdict == "good"
    assert "x" in CalibrationCache.from_bytes(cache)
    assert second.reused_from is None and again.read_bytes(Artifact.CALIBRATION_CACHE) == cache


def test_isolated_build_gives_same_engine(store: Path, model: Path) -> None:
    here = convert(model, replace(QUICK, build=OBEYED))
    there = convert(model, replace(QUICK, build=OBEYED, isolated=True, timeout_seconds=120.0, rebuild=True))

    ours, childs = (builds.load_build(default_tracker().load(r.run_id)) for r in (here, there))
    assert there.verdict == here.verdict == "good"
    assert there.reused_from is None and there.spec_sha256 == here.spec_sha256
    assert {c.layer for c in childs.tactics.choices if c.replayable} == {
        c.layer for c in ours.tactics.choices if c.replayable
    }
    assert childs.engine.environment.build_digest() == ours.engine.environment.build_digest()
    assert "[INFO]" in childs.log


# --- one build per GPU ----------------------------------------------------------------------------------------------


def test_missing_gpu_limit_is_created(store: Path, model: Path) -> None:
    name = limit_name(current_gpu().uuid_sha256)
    convert(model, QUICK)
    with get_client(sync_client=True) as client:
        client.delete_global_concurrency_limit_by_name(name)
        with pytest.raises(ObjectNotFound):
            client.read_global_concurrency_limit_by_name(name)

    convert(model, QUICK)

    with get_client(sync_client=True) as client:
        limit = client.read_global_concurrency_limit_by_name(name)
    assert (limit.limit, limit.active_slots) == (1, 0)


def test_flows_take_turns_on_one_gpu(store: Path, tmp_path: Path) -> None:
    paths = [convolutions(tmp_path, name, seed) for name, seed in (("left", 10), ("right", 20))]
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import time\nimport numpy as np\n\n\ndef load_data():\n"
        f"    time.sleep(1)\n    yield {{'x': np.ones({SHAPE}, np.float32)}}\n"
    )
    results: dict[str, ConvertResult] = {}

    def build(path: Path) -> None:
        results[path.stem] = convert(path, replace(QUICK, build=OBEYED), data=str(slow))

    default_tracker()  # the store and the server are made once, not by both at the same time
    with get_client(sync_client=True) as client:
        client.api_healthcheck()
    threads = [threading.Thread(target=build, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert set(results) == {"left", "right"}
    first, second = sorted((default_tracker().info(r.run_id) for r in results.values()), key=lambda i: i.start_time)
    print(first.start_time, first.end_time, second.start_time, second.end_time)
    assert first.verdict == second.verdict == "good"
    assert first.end_time is not None and first.end_time <= second.start_time


# --- the other flows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibrator", ["tensorrt", "onnxruntime"])
def test_calibration_leaves_cache_and_engine(
    store: Path, model: Path, images: Path, tmp_path: Path, calibrator: str
) -> None:
    evaluated = replace(CHECK, data=str(images), tolerances=Tolerances(atol=np.inf, rtol=np.inf, min_cosine=0.95))
    config = CalibrateConfig(
        build=replace(FP16, precision="int8"),
        check=evaluated,
        compare_with=(),
        pictures=0,
        calibrator=calibrator,  # type: ignore[arg-type]
    )
    output = tmp_path / "calibration.cache"

    result = calibrate(model, config, data=str(images), output=str(output))

    engine = default_tracker().info(result.engine("int8").run_id)
    assert (result.verdict, result.feeds, result.samples) == ("good", 4, 32)
    assert "x" in CalibrationCache.from_bytes(output.read_bytes())
    assert engine.parent == result.run_id and engine.tags[Tag.BACKEND] == "tensorrt"


def test_the_tools_on_models_evaluate_by_engines(store: Path, tmp_path: Path) -> None:
    path = models.overflowing().write(tmp_path, "overflowing")
    loose = CHECK.tolerances

    found = accuracy(path, config=AccuracyConfig(tolerances=loose), side="tensorrt", precision="fp16")
    mixed = precision(path, config=PrecisionConfig(tolerances=loose), side="tensorrt")
    small = reduce(path, backend="tensorrt", precision="fp16", tolerances=loose)

    assert found.verdict == "bad" and found.first in ("c", "d", "y")
    assert mixed.outcome == "mixed" and "conv1" in mixed.keep and "conv0" not in mixed.keep
    assert small.verdict == "bad" and small.culprits[0].minimal and len(small.culprits[0].nodes) <= 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_campaign_on_gpu_is_diffed(store: Path, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "feed.npz", x=models.random(*SHAPE, seed=9))
    check = replace(CHECK, data=str(tmp_path / "feed.npz"), latency_runs=0, tolerances=Tolerances(atol=1e9))
    config = DebugBuildConfig(build=FP16, check=check, random_tactics=True, timeout_seconds=120.0)

    campaign = debug_build(model, config, until=2)
    diffed = diff_tactics(runs=(campaign.run_id,))

    assert (campaign.iterations, campaign.good, campaign.errors) == (2, 2, 0)
    assert diffed.builds == 2 and not diffed.skipped
    runs = default_tracker().find("convolutions", parent=campaign.run_id, tags={Tag.KIND: "iteration"})
    assert all(info.tags["trtops.device.uuid_sha256"] for info in runs)
    assert len({info.params["options.tactic_seed"] for info in runs}) == 2
    with pytest.raises(errors.ConfigError):  # nothing is suspected where all builds are good
        prove(campaign.run_id)


def test_engine_digest_is_that_of_run(store: Path, model: Path) -> None:
    result = convert(model, QUICK)

    engine = builds.load_engine(default_tracker().load(result.run_id))
    assert hashlib.sha256(engine.plan).hexdigest() == result.engine_sha256
    assert default_tracker().info(result.run_id).tags[Tag.ENGINE_SHA256] == result.engine_sha256
