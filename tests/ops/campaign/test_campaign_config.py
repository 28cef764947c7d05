"""What a campaign builds: the same as convert, checked for the precision that it computes in as well."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests import models, zoo
from trtops import errors
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.command import CommandCheck
from trtops.spec import BuildConfig
from trtops.tracking import schema
from trtops.tracking.base import RunInfo
from trtops.tracking.memory import MemoryTracker


def only_build(model: Path, tracker: MemoryTracker, **config: object) -> RunInfo:
    """The run of a campaign's only build."""
    made = debug_build(model, DebugBuildConfig(until=1, **config), tracker=tracker)  # type: ignore[arg-type]
    [info] = tracker.find(parent=made.run_id, tags={schema.Tag.KIND: "iteration"})
    return info


def test_int8_spec_equals_convert_with_a_file(tmp_path: Path) -> None:
    case, tracker, specs = models.conv_net(), MemoryTracker(), set()
    model, check = case.write(tmp_path), CheckConfig(latency_runs=0, plots="never", iterations=3)
    for scale in (1.0, 3.0):
        data = str(tmp_path / f"{scale}.npz")
        np.savez(data, **{key: array * np.float32(scale) for key, array in case.feed.items()})
        config = {"build": BuildConfig(precision="int8"), "check": check, "calibration_data": data}
        converted = convert(model, ConvertConfig(**config), tracker=tracker)
        assert only_build(model, tracker, **config).tags[schema.Tag.SPEC_SHA256] == converted.spec_sha256
        specs.add(converted.spec_sha256)
    assert len(specs) == 2


def test_until_beyond_the_limit_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match=r"until is 400.*after 200 builds.*--max-builds 400"):
        DebugBuildConfig(until=400)
    assert DebugBuildConfig(until=400, max_iterations=400).limit == 400


@pytest.mark.parametrize("by_command", [False, True])
@pytest.mark.parametrize(("share", "verdict"), [(0.0, "good"), (0.5, "bad")])
def test_too_few_lowered_kernels_are_bad(share: float, verdict: str, by_command: bool, tmp_path: Path) -> None:
    """One build in FP16, which ONNX Runtime computes in FP32, is checked as convert does."""
    case, tracker = zoo.classifier(), MemoryTracker()
    np.savez(tmp_path / "feed.npz", **dict(case.feed))
    info = only_build(
        case.write(tmp_path),
        tracker,
        build=BuildConfig(precision="fp16"),
        check=CheckConfig(data=str(tmp_path / "feed.npz"), latency_runs=0, plots="never", min_precision_share=share),
        command=CommandCheck(command=(sys.executable, "-c", "pass", "{engine}")) if by_command else None,
    )

    assert (info.verdict, info.metrics[schema.Metric.KERNELS_LOWERED]) == (verdict, 0)
    assert info.tags.get(schema.Tag.BAD_IN) == ("precision" if verdict == "bad" else None)
    if by_command:
        assert ("No FP16 engine" in info.tags[schema.Tag.NOTE]) == (verdict == "bad")
        return
    stored = tracker.load(info.id)
    evaluated = Evaluation.from_json(stored.read_bytes(schema.Artifact.ACCURACY))
    assert evaluated.verdict == verdict
    assert evaluated.emulated is not None and evaluated.emulated.verdict == "good"
    assert ("at least 50% are required" in " ".join(evaluated.reasons)) == (verdict == "bad")
    assert schema.Artifact.PRECISIONS in stored.manifest
