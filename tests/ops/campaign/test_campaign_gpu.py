"""A campaign on TensorRT and a real GPU: FP16 builds that differ, a tolerance between two groups of them, diff and
proof by swap.
"""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors
from trtops.comparator.report import Tolerances
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.campaign.diff_tactics import DiffTacticsConfig, diff_tactics
from trtops.ops.campaign.prove import ProveConfig, ProveResult, prove
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.registry.accepted import resolve
from trtops.ops.registry.deny import deny, deny_list
from trtops.ops.registry.promote import promote
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Artifact, Tag

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    """A small CNN that ends in a fully connected layer for ten classes: kernels of nearly the same speed to choose
    from."""
    weights = {
        "w0": models.random(16, 3, 3, 3, seed=1, scale=0.3),
        "b0": models.random(16, seed=2),
        "w2": models.random(16, 10, seed=8, scale=0.5),
        "b2": models.random(10, seed=9),
    }
    proto = models.model(
        """(float[4,3,16,16] image) => (float[4,10] scores) {
            [conv0] c0 = Conv<pads = [1,1,1,1]>(image, w0, b0)
            [relu0] r0 = Relu(c0)
            [pool] p = GlobalAveragePool(r0)
            [flatten] f = Flatten(p)
            [fc] scores = Gemm(f, w2, b2)
        }""",
        weights,
        name="small_cnn",
    )
    path = folder / "small_cnn.onnx"
    onnx.save(proto, path)
    np.savez(folder / "feed.npz", image=models.random(4, 3, 16, 16, seed=10))
    return path


def campaign(folder: Path, atol: float, **changes: object) -> DebugBuildConfig:
    check = CheckConfig(
        data=str(folder / "feed.npz"), tolerances=Tolerances(atol=atol, rtol=0), plots="never", latency_runs=0
    )
    # One layer computes in FP16 in every build: one that computes in FP32 alone is bad, whatever its outputs.
    options = TensorRTOptions(precision_constraints="prefer", layer_precisions=(("conv0", "float16"),))
    usual = DebugBuildConfig(
        build=BuildConfig(precision="fp16", options=options), check=check, random_tactics=True, timeout_seconds=120.0
    )
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def largest_errors(tracker: MlflowTracker, experiment: str) -> list[float]:
    runs = tracker.find(experiment, tags={Tag.KIND: "iteration"}, status="finished")
    return sorted(i.metrics["error", "max_abs"] for i in runs if i.verdict == "good")


@pytest.fixture(scope="module")
def tolerance(model: Path, folder: Path, tracker: MlflowTracker) -> float:
    """A tolerance between two groups of at least two of eight builds.

    Tactics are drawn at random: which of two is faster changes when other work begins or ends on the GPU.
    """
    debug_build(model, campaign(folder, 1e9, until=8), tracker=tracker, experiment="errors")
    largest = largest_errors(tracker, "errors")
    gap, middle = max((b - a, (a + b) / 2) for a, b in list(itertools.pairwise(largest))[1:-1])
    assert gap > 0, f"the builds are alike: {largest}"
    return middle


def test_campaign_of_sixteen_builds_and_proof(
    model: Path, folder: Path, tracker: MlflowTracker, tolerance: float
) -> None:
    result = debug_build(model, campaign(folder, tolerance, until=16), tracker=tracker, experiment="campaign")
    report = diff_tactics(DiffTacticsConfig(runs=(result.run_id,)), tracker=tracker)

    assert (result.iterations, result.errors) == (16, 0)
    assert result.good and result.bad, "the tolerance lies between builds that were seen"
    assert result.diff.suspects and result.diff.varying_layers
    assert report.diff == result.diff
    proofs = proofs_of(result.run_id, result.diff.suspects, tracker)
    assert all(proof.outcome in ("confirmed", "refuted", "not isolable") for proof in proofs)
    for proof in proofs:
        assert {t.swap for t in proof.trials} == {"good as it was", "bad as it was", "in", "out"}
    confirmed = [proof for proof in proofs if proof.outcome == "confirmed"]
    if confirmed:
        if confirmed[0].deny_run is None:  # the tolerance is the campaign's own
            deny(confirmed[0].run_id, tracker=tracker)
        avoided = debug_build(
            model, campaign(folder, tolerance, until=2, use_deny_list=True), tracker=tracker, experiment="avoided"
        )
        environment = promote_and_resolve(result.run_id, model, tracker)
        denied = deny_list(tracker, environment)
        assert [entry.evidence for entry in denied.entries] == [confirmed[0].run_id]
        for info in tracker.find("avoided", tags={Tag.KIND: "iteration"}):
            log = tracker.load(info.id).read_bytes(Artifact.BUILD_LOG).decode()
            assert "deny-list" in log
        assert avoided.iterations == 2


def proofs_of(run_id: str, suspects: tuple, tracker: MlflowTracker) -> list[ProveResult]:
    """Proofs of the diff's explanation, then of the next suspects, until one is confirmed; three at most."""
    proofs: list[ProveResult] = []
    for position in (None, *[i for i, s in enumerate(suspects) if s.choices and s.bad > s.good][:3]):
        if len(proofs) == 3 or any(proof.outcome == "confirmed" for proof in proofs):
            break
        try:
            proof = prove(run_id, ProveConfig(suspect=position, repeats=2), tracker=tracker)
        except errors.ConfigError:  # nothing of it can be swapped
            continue
        proofs.append(proof)
    assert proofs
    return proofs


def promote_and_resolve(run_id: str, model: Path, tracker: MlflowTracker):  # type: ignore[no-untyped-def]
    good = next(info for info in tracker.find("campaign", parent=run_id) if info.verdict == "good")
    promoted = promote(good.id, tracker=tracker)
    resolved = resolve(model, tracker=tracker, backend="tensorrt")
    assert resolved.run_id == promoted.run_id, resolved.reason
    return resolved.engine(tracker).environment
