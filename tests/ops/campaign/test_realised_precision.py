"""Builds of a campaign, and engines of a calibration, that do not compute in the precision asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests import zoo
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.command import CommandCheck
from trtops.spec import BuildConfig
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker

HALF = BuildConfig(precision="fp16")


def campaign(folder: Path, share: float, **others: object) -> tuple[MemoryTracker, str]:
    """One build in FP16, which ONNX Runtime computes in FP32; and its run."""
    case, tracker = zoo.classifier(), MemoryTracker()
    np.savez(folder / "feed.npz", **dict(case.feed))
    check = CheckConfig(data=str(folder / "feed.npz"), latency_runs=0, plots="never", min_precision_share=share)
    config = DebugBuildConfig(build=HALF, check=check, until=1, **others)  # type: ignore[arg-type]
    result = debug_build(case.write(folder), config, tracker=tracker)
    [info] = tracker.find(result.experiment, tags={schema.Tag.KIND: "iteration"})
    return tracker, info.id


@pytest.mark.parametrize(("share", "verdict"), [(0.0, "good"), (0.5, "bad")])
def test_iteration_checks_precision_as_convert_does(share: float, verdict: str, tmp_path: Path) -> None:
    tracker, run = campaign(tmp_path, share)

    info, stored = tracker.info(run), tracker.load(run)
    evaluated = Evaluation.from_json(stored.read_bytes(schema.Artifact.ACCURACY))
    assert info.verdict == evaluated.verdict == verdict
    assert info.metrics[schema.Metric.KERNELS_LOWERED] == 0
    assert evaluated.emulated is not None and evaluated.emulated.verdict == "good"
    assert ("at least 50% are required" in " ".join(evaluated.reasons)) == (verdict == "bad")
    assert info.tags.get(schema.Tag.BAD_IN) == ("precision" if verdict == "bad" else None)
    assert schema.Artifact.PRECISIONS in stored.manifest


@pytest.mark.parametrize(("share", "verdict"), [(0.0, "good"), (0.5, "bad")])
def test_precision_limit_holds_for_commands(share: float, verdict: str, tmp_path: Path) -> None:
    command = CommandCheck(command=(sys.executable, "-c", "pass", "{engine}"))
    tracker, run = campaign(tmp_path, share, command=command)

    info = tracker.info(run)
    assert (info.verdict, info.metrics[schema.Metric.KERNELS_LOWERED]) == (verdict, 0)
    assert ("No FP16 engine" in info.tags[schema.Tag.NOTE]) == (verdict == "bad")
    assert info.tags.get(schema.Tag.BAD_IN) == ("precision" if verdict == "bad" else None)
