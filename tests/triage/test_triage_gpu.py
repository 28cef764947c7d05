"""The triage and bundles on real TensorRT and a GPU: an FP16 engine that overflows. Run with ``-s`` to read them."""

from pathlib import Path

import numpy as np
import pytest

from tests import models
from tests.ops.bundling.test_bundle import run_as_a_stranger
from trtops.comparator.report import Tolerances
from trtops.ops.bundling.op import BundleConfig, bundle
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.triaging.op import triage
from trtops.ops.triaging.result import TriageConfig
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker

pytestmark = pytest.mark.gpu

FP16 = BuildConfig(precision="fp16", options=TensorRTOptions(optimization_level=1))
LOOSE = Tolerances(atol=0.05, rtol=0.05)


@pytest.fixture
def overflowing(tmp_path: Path) -> tuple[Path, CheckConfig]:
    """A model whose FP16 engine overflows, and its check."""
    case = models.overflowing()
    np.savez(tmp_path / "inputs.npz", **case.feed)
    check = CheckConfig(data=str(tmp_path / "inputs.npz"), tolerances=LOOSE, latency_runs=0, plots="never")
    return case.write(tmp_path), check


def test_triage_names_and_bundles_the_overflow(overflowing: tuple[Path, CheckConfig], tmp_path: Path) -> None:
    path, check = overflowing
    tracker = MemoryTracker()
    result = triage(path, TriageConfig(build=FP16, check=check, output=str(tmp_path)), tracker=tracker)
    print(result.page())
    assert result.kind == "overflow" and {"conv1", "c"} & set(result.places[:3])
    assert any("keep in FP32" in remedy for remedy in result.remedies) and (tmp_path / "bundle.zip").is_file()
    # The newest first: the last one is the engine of the whole model, and others are parts in ONNX Runtime.
    bad = [info for info in tracker.find(tags={schema.Tag.KIND: "build"}) if info.verdict == "bad"]

    bundled = bundle(bad[-1].id, BundleConfig(output=str(tmp_path / "engine.zip")), tracker=tracker)
    again = run_as_a_stranger(tmp_path / "engine.zip", tmp_path / "there")
    print(bundled.page(), again)
    assert "engine/engine.engine" in bundled.files and "verdict: bad" in bundled.printed
    assert again.returncode == 0 and "verdict: bad" in again.stdout and "TensorRT" in again.stdout
