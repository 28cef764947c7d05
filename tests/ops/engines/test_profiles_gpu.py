"""Every optimization profile of a TensorRT engine is evaluated, each in its own profile."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, OptimizationProfile, Precision, ShapeRange, TensorRTOptions
from trtops.tracking import builds
from trtops.tracking.memory import MemoryTracker

pytestmark = pytest.mark.gpu


def profile(low: int, usual: int, high: int) -> OptimizationProfile:
    return OptimizationProfile(shapes=(ShapeRange(name="x", min=(low, 8), opt=(usual, 8), max=(high, 8)),))


def test_profiles_are_evaluated_each_in_its_own(tmp_path: Path) -> None:
    proto = models.model(
        "(float[N,8] x) => (float[N,5] y) { z = MatMul(x, w) y = Relu(z) }", {"w": models.random(8, 5)}
    )
    onnx.save(proto, tmp_path / "m.onnx")
    build = BuildConfig(profiles=(profile(2, 4, 16), profile(16, 32, 32)), options=TensorRTOptions())
    check = CheckConfig(latency_runs=2, plots="never", self_check=True)
    tracker = MemoryTracker()

    result = convert(tmp_path / "m.onnx", ConvertConfig(build=build, check=check), tracker=tracker)

    assert result.verdict == "good", result.reasons
    assert result.evaluation.self_check is not None
    outcomes = {relation.name: relation.outcome for relation in result.evaluation.self_check.relations}
    assert "broken" not in outcomes.values() and outcomes["repeated inference"] == "held", outcomes
    assert outcomes["two contexts"] == "skipped"  # the first has the profiles of 8.6
    assert result.evaluation.evidence is not None
    entries = [(e.profile, e.point, e.shapes["x"][0], e.verdict) for e in result.evaluation.evidence.shapes]
    assert entries == [
        (0, "opt", 4, "good"), (0, "min", 2, "good"), (0, "max", 16, "good"), (0, "between", 10, "good"),
        (1, "opt", 32, "good"), (1, "min", 16, "good"), (1, "between", 24, "good"),
    ]  # fmt: skip
    engine = builds.load_build(tracker.load(result.run_id)).engine
    with engine_backend("tensorrt").runner(engine) as runner:
        feeds = check.open_for(Model.load(tmp_path / "m.onnx"), profiles=build.profiles)
        for feed, expected in zip(feeds, (0, 0, 0, 0, 0, 1, 1, 1)):
            runner.infer(feed)
            assert runner.context.active_optimization_profile == expected
        runner.infer({"x": np.zeros((2, 8), np.float32)})  # a plain feed gets the first profile that accepts it
        assert runner.context.active_optimization_profile == 0


def test_data_without_profiles_decides_the_shapes(tmp_path: Path) -> None:
    proto = models.model(
        "(float[N,8] x) => (float[N,5] y) { z = MatMul(x, w) y = Relu(z) }", {"w": models.random(8, 5)}
    )
    onnx.save(proto, tmp_path / "m.onnx")
    (tmp_path / "rows").mkdir()
    for rows in (2, 6):
        np.savez(tmp_path / "rows" / f"{rows}.npz", x=models.random(rows, 8, seed=rows))
    options = TensorRTOptions(optimization_level=1, record_tactics=False)
    for data, verdict, shapes in ((str(tmp_path / "rows"), "good", {2, 4, 6}), (None, "unproven", {2})):
        check = CheckConfig(data=data, latency_runs=0, plots="never", self_check=True)
        config = ConvertConfig(build=BuildConfig(options=options), check=check)
        result = convert(tmp_path / "m.onnx", config, tracker=MemoryTracker())
        assert result.verdict == verdict, result.reasons
        assert {entry.shapes["x"][0] for entry in result.evaluation.evidence.shapes} == shapes


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_engines_agree_with_themselves(tmp_path: Path, precision: Precision) -> None:
    case = models.conv_net().fixed()
    build = BuildConfig(precision=precision, options=TensorRTOptions(optimization_level=1, record_tactics=False))
    check = CheckConfig(latency_runs=0, plots="never", self_check=True)

    result = convert(case.write(tmp_path), ConvertConfig(build=build, check=check), tracker=MemoryTracker())

    self_check = result.evaluation.self_check
    assert self_check is not None and not self_check.reasons, self_check.reasons
    assert {"repeated inference", "buffer contents", "two contexts"} <= set(self_check.named("held")), (
        self_check.sentence()
    )
