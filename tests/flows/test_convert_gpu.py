"""The flows on real TensorRT and a GPU, with a real Prefect server and a real MLflow store."""

import contextvars
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from prefect.client.orchestration import get_client

from flows.convert import compare, convert
from tests import models
from trtops.backend.trt import current_gpu
from trtops.comparator.report import Tolerances
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking import builds
from trtops.tracking.schema import DEVICE_STATE, Artifact, Tag
from trtops.tracking.store import default_tracker

pytestmark = pytest.mark.gpu

CHECK = CheckConfig(tolerances=Tolerances(atol=0.05, rtol=0.05), latency_runs=5, warm_up=1, plots="never")
FP16 = BuildConfig(precision="fp16", options=TensorRTOptions(optimization_level=2))
QUICK = ConvertConfig(build=FP16, check=CHECK)
# Where the verdict is looked at: left alone, the builder may find FP32 faster, and an FP16 engine in FP32 is bad.
OBEYED = replace(
    FP16, options=replace(FP16.options, layer_precisions=(("conv[01]", "float16"),), precision_constraints="obey")
)
SHAPE = (8, 64, 28, 28)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two convolutions: nothing of it is Myelin's, whose timings 8.6 does not read back from a cache."""
    return convolutions(tmp_path, "convolutions")


def convolutions(folder: Path, name: str, seed: int = 0) -> Path:
    weights = {f"w{i}": models.random(64, 64, 3, 3, seed=seed + i, scale=0.06) for i in range(2)}
    text = """(float[8,64,28,28] x) => (float[8,64,28,28] y) {
        [conv0] a = Conv<pads = [1,1,1,1]>(x, w0) [relu0] b = Relu(a) [conv1] y = Conv<pads = [1,1,1,1]>(b, w1)
    }"""
    onnx.save(models.model(text, weights, name=name), folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


def test_tensorrt_run_is_as_whole_as_onnxruntimes(store: Path, tmp_path: Path) -> None:
    path = models.conv_net().fixed().write(tmp_path, "small")

    result = convert(path, backend="tensorrt")
    again = convert(path, backend="tensorrt")
    same = compare(f"run:{result.run_id}", str(path))

    run = default_tracker().load(result.run_id)
    assert result.verdict == again.verdict == same.verdict == "good"
    assert again.reused_from == result.run_id and again.engine_sha256 == result.engine_sha256
    assert run.info.experiment == "small" and run.info.tags[Tag.PREFECT_FLOW_RUN]
    artifacts = (Artifact.TACTICS, Artifact.LAYERS, Artifact.TIMING_CACHE, Artifact.ACCURACY, Artifact.SPEC)
    assert {entry.path for entry in run.manifest.artifacts} >= {"engine/engine.engine", "model/small.onnx", *artifacts}
    assert "[INFO]" in run.read_bytes(Artifact.BUILD_LOG).decode()
    metrics = run.info.metrics
    assert metrics["build", "seconds"] > 0 and metrics["build", "engine_bytes"] == result.engine_bytes
    assert metrics["latency", "p50_ms"] > metrics["latency", "device_p50_ms"] > 0
    assert metrics["error", "max_abs"] < 1e-4
    build = builds.load_build(run)
    assert build.tactics.choices and build.layers and build.timing_cache


def test_params_name_gpu_without_uuid(store: Path, model: Path) -> None:
    info = default_tracker().info(convert(model, QUICK).run_id)
    state = {name: value for name, value in info.params.items() if name.startswith(DEVICE_STATE)}

    gpu = current_gpu()
    assert info.fact(Tag.BACKEND) == "tensorrt" and re.fullmatch(r"\d+\.\d+\.\d+.*", info.fact(Tag.BACKEND_VERSION))
    assert (info.fact(Tag.DEVICE), info.fact(Tag.COMPUTE_CAPABILITY)) == (gpu.name, gpu.compute_capability)
    assert info.fact(Tag.CUDA) == gpu.cuda
    assert state[f"{DEVICE_STATE}uuid_sha256"] == gpu.uuid_sha256 and len(gpu.uuid_sha256) == 16
    assert not any("GPU-" in value for value in (*info.tags.values(), *info.params.values()))
    if shutil.which("nvidia-smi"):
        assert info.fact(Tag.DRIVER) == gpu.driver
        assert int(state[f"{DEVICE_STATE}sm_clock_mhz"]) > 0 and int(state[f"{DEVICE_STATE}memory_clock_mhz"]) > 0
        assert int(state[f"{DEVICE_STATE}other_processes"]) >= 0


def test_timing_cache_of_run_saves_timing(store: Path, model: Path) -> None:
    unwatched = replace(QUICK, build=replace(FP16, options=replace(FP16.options, record_tactics=False)))
    first = convert(model, unwatched)
    run = default_tracker().load(first.run_id)

    second = convert(model, replace(unwatched, timing_cache=str(run.local_path(Artifact.TIMING_CACHE))))

    before, after = builds.load_build(run), builds.load_build(default_tracker().load(second.run_id))
    assert before.timing_cache_use.misses > 0
    assert after.timing_cache_use.hits > 0 and after.timing_cache_use.misses == 0
    assert after.layers == before.layers


def test_flows_take_turns_on_one_gpu(store: Path, tmp_path: Path) -> None:
    paths = [convolutions(tmp_path, name, seed) for name, seed in (("left", 10), ("right", 20))]
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import time\nimport numpy as np\n\n\ndef load_data():\n"
        f"    time.sleep(1)\n    yield {{'x': np.ones({SHAPE}, np.float32)}}\n"
    )

    def build(path: Path) -> ConvertResult:
        result: ConvertResult = convert(path, replace(QUICK, build=OBEYED), data=str(slow))
        return result

    default_tracker()  # the store and the server are made once, not by both at the same time
    with get_client(sync_client=True) as client:
        client.api_healthcheck()
    # Threads begin without the settings of this test, and so without its server.
    contexts = [contextvars.copy_context() for _ in paths]
    with ThreadPoolExecutor(2) as pool:
        results = [*pool.map(lambda context, path: context.run(build, path), contexts, paths)]

    first, second = sorted((default_tracker().info(r.run_id) for r in results), key=lambda i: i.start_time)
    assert first.verdict == second.verdict == "good"
    assert first.end_time is not None and first.end_time <= second.start_time
