"""The guide, repair, isolation and bundles on real TensorRT and a GPU: an FP16 engine that overflows.

Run with ``-s`` to read what they found; with ``OUT`` in the environment it is also written there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import models
from tests.guide.planted import deep_transformer, feed_of
from trtops.comparator.report import Tolerances
from trtops.ops.bundling.config import BundleConfig
from trtops.ops.bundling.op import bundle
from trtops.ops.engines.convert import convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.guiding.config import GuideConfig
from trtops.ops.guiding.op import guide
from trtops.ops.repairing.config import RepairConfig
from trtops.ops.repairing.op import repair
from trtops.ops.search.isolation.marking import IsolationConfig, find_marks
from trtops.ops.search.isolation.window import isolate
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

FP16 = BuildConfig(precision="fp16", options=TensorRTOptions(optimization_level=1))
LOOSE = Tolerances(atol=0.05, rtol=0.05)
CONVOLUTIONS = {"conv1", "relu1", "conv2"}


def told(name: str, text: str, started: float) -> None:
    """Say what was found and how long it took, here and in the folder that takes results."""
    said = f"{text}\n{time.perf_counter() - started:.1f} s\n"
    print(said)
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], f"guide_{name}.txt").write_text(said)


@pytest.fixture
def overflowing(tmp_path: Path) -> tuple[Path, CheckConfig]:
    """A model of which TensorRT makes an FP16 engine that overflows, and how it is evaluated."""
    case = models.overflowing()
    np.savez(tmp_path / "inputs.npz", **case.feed)
    check = CheckConfig(data=str(tmp_path / "inputs.npz"), tolerances=LOOSE, latency_runs=0, plots="never")
    return case.write(tmp_path), check


def as_a_stranger(zipped: Path, folder: Path, *arguments: str) -> str:
    """Unpack a bundle and run its script where importing trtops fails; what it prints."""
    with zipfile.ZipFile(zipped) as archive:
        archive.extractall(folder)
    (folder / "trtops.py").write_text("raise ImportError('there is no trtops here')")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "reproduce.py", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_guide_names_the_overflow_and_a_bundle_of_the_engine_repeats_it(
    overflowing: tuple[Path, CheckConfig], tmp_path: Path
) -> None:
    path, check = overflowing
    started, tracker = time.perf_counter(), MemoryTracker()
    config = GuideConfig(build=FP16, check=check, rebuilds=1, keep_checks=40, reduce_checks=40, output=str(tmp_path))
    result = guide(path, config, tracker=tracker)
    told("tree", result.page(), started)
    assert result.kind == "overflow" and {"conv1", "c"} & set(result.places[:3])
    assert any("keep in FP32" in remedy for remedy in result.remedies) and (tmp_path / "bundle.zip").is_file()
    bad = [info for info in tracker.find(tags={schema.Tag.KIND: "build"}) if info.verdict == "bad"]
    assert bad

    started = time.perf_counter()
    made = bundle(bad[0].id, BundleConfig(output=str(tmp_path / "engine.zip")), tracker=tracker)
    reported = as_a_stranger(tmp_path / "engine.zip", tmp_path / "there")
    told("bundle", f"{made.page()}\nas a stranger: {reported}", started)
    assert "engine/engine.engine" in made.files and "verdict: bad" in made.said
    assert "verdict: bad" in reported and "TensorRT" in reported


def test_repair_finds_an_engine_that_passes_and_its_bundle_is_good_when_built_anew(
    overflowing: tuple[Path, CheckConfig], tmp_path: Path
) -> None:
    path, check = overflowing
    started, tracker = time.perf_counter(), MemoryTracker()
    config = RepairConfig(
        build=FP16, check=replace(check, latency_runs=20, warm_up=3), change=("keep",), max_builds=20, minutes=2
    )
    result = repair(path, config, tracker=tracker)
    told("repair", result.page(), started)
    assert result.verdict == "good" and result.config is not None and result.chosen is not None
    assert not result.trials[0].outcome.good
    assert set(result.config.build.keep) & CONVOLUTIONS

    started = time.perf_counter()
    run = convert(path, result.config, tracker=tracker)
    assert run.verdict == "good"
    made = bundle(run.run_id, BundleConfig(output=str(tmp_path / "repaired.zip")), tracker=tracker)
    anew = as_a_stranger(tmp_path / "repaired.zip", tmp_path / "again", "--build")
    told("repaired_bundle", f"{made.page()}\nbuilt anew: {anew}", started)
    assert "verdict: good" in anew
    # 8.6.0 says so of what Myelin left in its own cache, and uses the rest; of anything else it would time all anew.
    assert "timing cache will not be used" not in anew or "myelinCache" in anew


def test_isolation_finds_the_window_of_an_overflow() -> None:
    case = models.overflowing()
    started, config = time.perf_counter(), IsolationConfig(tolerances=LOOSE, max_builds=24)
    found = isolate(case.proto, FP16, config, feeds=[case.feed])
    marks = find_marks(case.proto, FP16, config, feeds=[case.feed])
    told("window", f"{found.page()}\n{marks.page()}", started)
    assert found.verdict == "bad" and found.how == "own"
    assert 0 < len(found.nodes) <= 3 and {node.name for node in found.nodes} <= CONVOLUTIONS
    assert marks.verdict == "bad"


@pytest.mark.xfail(reason="8.6.0 on an H200 gets this model right in FP16, so that there is nothing to isolate")
def test_isolation_finds_a_window_in_what_is_fused_by_myelin() -> None:
    """Scores and a perceptron beyond FP16: the whole block is one foreign node, whose inside nobody sees."""
    proto = deep_transformer(layers=1, width=256)
    larger = {"l0_wq": 100, "l0_wk": 100, "l0_win": 3e5, "l0_wout": 1 / 3e5}
    for weight in proto.graph.initializer:
        if weight.name in larger:
            scaled = np.frombuffer(weight.raw_data, np.float32) * np.float32(larger[weight.name])
            weight.raw_data = scaled.tobytes()
    started, config = time.perf_counter(), IsolationConfig(max_builds=24)
    found = isolate(proto, FP16, config, feeds=[feed_of(proto)])
    told("myelin", found.page(), started)
    assert found.verdict == "bad" and found.how == "own"
    assert 0 < len(found.nodes) <= 5
