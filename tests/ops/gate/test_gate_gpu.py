"""The gate on TensorRT and a real GPU: an unchanged pair, another optimization level, and lost precision."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gates import built, claiming, convolutions, kept, write
from trtops.ops.gate.op import gate
from trtops.ops.gate.policy import AccuracyLimit, GateConfig, LatencyLimit, Limits, Policy
from trtops.ops.gate.result import GateResult
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking.mlflow import MlflowTracker

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

# Kernels of nearly the same speed differ from build to build, and those of Winograd's algorithm are less exact: wider
# limits than for one engine against itself.
POLICY = Policy(limits=Limits(latency=LatencyLimit(ratio=1.2), accuracy=AccuracyLimit(widths=20), precision_share=0.5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate-gpu")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return write(convolutions(channels=64, size=64, layers=6), folder, "convolutions")


@pytest.fixture(scope="module")
def tracker(folder: Path) -> MlflowTracker:
    return MlflowTracker(folder / "mlruns")


def config(level: int | None = None, **changes: object) -> GateConfig:
    build = BuildConfig(options=TensorRTOptions(optimization_level=level))
    usual = GateConfig(build=build, policy=POLICY, keep_model=False, timeout_seconds=300.0)
    return replace(usual, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def first(model: Path, tracker: MlflowTracker) -> GateResult:
    result = gate(model, config(), tracker=tracker)
    assert result.decision == "accept", result.page()
    return result


def test_same_engine_is_accepted_without_timing(first, model, tracker) -> None:
    again = gate(model, config(candidate=first.holder, accepted=first.holder, register=False), tracker=tracker)

    assert again.decision == "accept", again.page()
    assert again.measured.accepted.run_id == first.holder
    assert again.ratio is None and again.measured.same_engine
    assert all(output.distance_widths < 1 for output in again.measured.widths)


# Not 0: there TensorRT 8.6 finds no implementation of these convolutions in FP32.
@pytest.mark.parametrize("level", [1, 5])
def test_other_optimization_level_is_decided_by_ratio(first, model, tracker, level: int) -> None:
    result = gate(model, config(level, accepted=first.holder, register=False), tracker=tracker)

    if result.measured.same_engine:  # level 1 chooses the kernels of the default level here
        assert result.ratio is None and result.decision == "accept"
        return
    limit = POLICY.limits.latency.ratio  # type: ignore[union-attr]
    slow = [finding for finding in result.findings if finding.subject == "latency"]
    expected = {"above": "refuse", "below": "pass", "open": "open"}[result.ratio.decision]
    assert [finding.outcome for finding in slow] == [expected]
    assert (result.ratio.low > limit) == (expected == "refuse") and (result.ratio.high < limit) == (expected == "pass")
    assert math.isfinite(result.ratio.high)
    assert not [f for f in result.findings if f.outcome == "refuse" and f.subject in ("reference", "accepted outputs")]


def test_fp16_engine_declared_fp32_is_refused(first, model, tracker) -> None:
    half = BuildConfig(precision="fp16", options=TensorRTOptions())
    planted = kept(tracker, model, claiming(built(model, half), config().build), suffix=".plan")
    strict = replace(POLICY, limits=replace(POLICY.limits, precision_share=0.1))

    result = gate(model, config(candidate=planted, register=False, policy=strict), tracker=tracker)

    assert "precision" in {finding.subject for finding in result.findings if finding.outcome == "refuse"}
