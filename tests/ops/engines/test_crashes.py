"""Settings that crash the builder: builds leave them out, and report and record them."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests import models
from trtops import errors
from trtops.backend.base import Build, BuildRequest
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.tactics import Candidate
from trtops.backend.worker import IsolatedBackend
from trtops.ops.engines import convert as converting
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking import builds, schema
from trtops.tracking.memory import MemoryTracker

DEADLY = "TRTOPS_TEST_DEADLY"
QUICK = CheckConfig(latency_runs=0, input_shapes={"x": (2, 5, 16)})
TACTICS = ("MatMulAddFusion", "BiasGeluFusion")
FEW = BuildConfig(options=OnnxRuntimeOptions(tactics=TACTICS, timing_iterations=1))


def build_and_die(deadly: str, request: BuildRequest) -> Build:
    """Build in a process that dies when ONNX Runtime gets a candidate of the list."""
    usual = Optimizer._write_optimized

    def write(self: Optimizer, candidate: Candidate, path: Path) -> None:
        if candidate.id in deadly.split(",") or deadly == "all":
            os.kill(os.getpid(), signal.SIGSEGV)
        usual(self, candidate, path)

    Optimizer._write_optimized = write  # type: ignore[method-assign]
    try:
        return engine_backend("onnxruntime").build(request)
    finally:
        Optimizer._write_optimized = usual  # type: ignore[method-assign]


class Dying(IsolatedBackend):
    """ONNX Runtime that crashes with some settings."""

    def build(self, request: BuildRequest) -> Build:
        return self.worker.run(build_and_die, os.environ[DEADLY], request)


@pytest.fixture
def block(tmp_path: Path) -> Path:
    return models.transformer().write(tmp_path)


@pytest.fixture
def dies_of(monkeypatch: pytest.MonkeyPatch, children: None):
    monkeypatch.setattr(converting, "IsolatedBackend", Dying)
    return lambda *settings: monkeypatch.setenv(DEADLY, ",".join(settings))


def test_crashing_settings_are_left_out(block: Path, dies_of) -> None:
    tracker = MemoryTracker()
    dies_of("-BiasGeluFusion")
    config = ConvertConfig(build=FEW, check=QUICK, isolated=True, rebuild=True)
    first = convert(block, config, tracker=tracker)

    assert (first.verdict, first.crashed) == ("good", ("-BiasGeluFusion",))
    assert "The builder crashed with -BiasGeluFusion" in first.page()
    assert json.loads(tracker.load(first.run_id).read_bytes(schema.Artifact.CRASHED)) == ["-BiasGeluFusion"]

    dies_of("nothing")
    again = convert(block, config, tracker=tracker)
    assert again.crashed == ("-BiasGeluFusion",)
    assert "-BiasGeluFusion cannot be built" in tracker.load(again.run_id).read_bytes("build.log").decode()


def test_all_optimizers_are_left_out_before_failing(block: Path, dies_of) -> None:
    left_out = ("default", "-MatMulAddFusion", "-BiasGeluFusion", "-NhwcTransformer")
    tracker, environment = MemoryTracker(), engine_backend("onnxruntime").environment()
    died = tracker.start("earlier", "died", kind="build")
    builds.log_crash(died, left_out, Model.load(block).info.sha256, environment)
    config = ConvertConfig(build=FEW, check=QUICK, isolated=True, rebuild=True)

    dies_of(*left_out, "-ExtendedOptimizations")
    result = convert(block, config, tracker=tracker)
    assert result.verdict == "good" and result.crashed == (*left_out, "-ExtendedOptimizations")
    assert "-AllOptimizations is built" in tracker.load(result.run_id).read_bytes("build.log").decode()

    dies_of("all")
    with pytest.raises(errors.EngineBuildError, match="crashed with these settings"):
        convert(block, config, tracker=tracker)
    [run] = tracker.find(status="failed")
    assert b"-AllOptimizations" in (tracker.peek(run.id, schema.Artifact.CRASHED) or b"")


def test_builds_below_fp32_are_isolated() -> None:
    for precision in ("fp32", "fp16", "int8"):
        config = ConvertConfig(build=BuildConfig(precision=precision))  # type: ignore[arg-type]
        with converting._open_backend(config) as backend:
            assert isinstance(backend, IsolatedBackend) == (precision != "fp32")
