"""Thirty engines of real TensorRT, each wrong for one of three reasons.

Ten models overflow in FP16; ten engines compute with a planted wrong weight, as a wrong kernel would; ten were
requested in FP16 and compute in FP32.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import models
from tests.gates import with_wrong_weight
from tests.models import Case
from trtops.backend.base import Build, BuildRequest
from trtops.backend.onnx.model import Model
from trtops.cli.main import main
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

EACH = 10
QUICK = TensorRTOptions(optimization_level=1, record_tactics=False)


def convolutions(seed: int, first: float = 0.06, second: float = 0.06) -> Case:
    return models.two_convolutions(seed, 4, (first, second))


def pinned(precision: str) -> TensorRTOptions:
    types = (("conv0", precision), ("conv1", precision))
    return replace(QUICK, layer_precisions=types, precision_constraints="obey")


def plant_wrong_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on engines are built with their first weight a tenth too large."""
    from trtops.backend.trt import TensorRTBackend

    build = TensorRTBackend.build

    def build_another(self: TensorRTBackend, request: BuildRequest) -> Build:
        wrong = Model.from_proto(with_wrong_weight(request.model.proto(), 1.1), request.model.name)
        return build(self, replace(request, model=wrong))

    monkeypatch.setattr(TensorRTBackend, "build", build_another)


def test_thirty_wrong_engines_are_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert_bad(case: Case, build: BuildConfig) -> None:
        np.savez(tmp_path / "feed.npz", **dict(case.feed))
        check = CheckConfig(data=str(tmp_path / "feed.npz"), latency_runs=0, warm_up=0, plots="never")
        config = ConvertConfig(build=build, check=check, keep_model=False, rebuild=True)
        result = convert(case.write(tmp_path), config, tracker=MemoryTracker())
        assert result.verdict == "bad", (case.name, build, result.evidence)

    half, full = (BuildConfig(precision="fp16", options=pinned(name)) for name in ("float16", "float32"))
    for seed in range(EACH):
        # The sums of the first convolution are in the hundred thousands; the second one makes them small again.
        convert_bad(convolutions(seed, first=3000.0 + 500 * seed, second=1e-3), half)
        partly_fp32 = BuildConfig(precision="fp16", keep=("conv0", "conv1"), options=QUICK)
        convert_bad(convolutions(seed), partly_fp32 if seed % 2 else full)
    plant_wrong_weights(monkeypatch)
    for seed in range(EACH):
        convert_bad(convolutions(seed), half)


def test_silent_fp32_engines_are_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "mlruns")
    words = ["--fp16", "--precision-constraints", "obey", "--layer-precisions", "conv0:float32", "conv1:float32"]
    words += ["--builder-optimization-level", "1", "--experiment", "silent", "--store", store]

    code = main(["convert", str(convolutions(3).write(tmp_path)), *words])

    output = capsys.readouterr().out
    assert code == 1, output
    assert "No FP16 engine: Of 2 kernels 2 in FP32. 0% compute in the" in " ".join(output.split())
    [info] = MlflowTracker(store).find("silent", tags={schema.Tag.KIND: "build"})
    assert info.verdict == "bad" and info.metrics[schema.Metric.KERNELS_LOWERED] == 0
