"""Bisections on TensorRT and a real GPU: FP16 builds of small networks, a tolerance between two groups of them, replays that mix.

Run with ``-s`` to read the log. ``TRTOPS_BISECT_PAIRS`` says how many pairs of builds of each network are bisected.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops.backend.trt.library import memory
from trtops.comparator.report import Tolerances
from trtops.ops.campaign.bisect import BisectConfig, BisectResult, bisect
from trtops.ops.campaign.config import DebugBuildConfig, Vary
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.judging.judgement import CheckConfig
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Tag

PAIRS = int(os.environ.get("TRTOPS_BISECT_PAIRS", "2"))
_ABSENT = importlib.util.find_spec("tensorrt") is None or memory.device_count() < 1
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(
        _ABSENT and os.environ.get("TRTOPS_REQUIRE_GPU") != "1",
        reason="needs TensorRT and a GPU; TRTOPS_REQUIRE_GPU=1 makes this an error",
    ),
]


def classifier() -> onnx.ModelProto:
    """One convolution, and a fully connected layer for ten classes."""
    weights = {
        "w0": models.random(16, 3, 3, 3, seed=1, scale=0.3),
        "b0": models.random(16, seed=2),
        "w2": models.random(16, 10, seed=8, scale=0.5),
        "b2": models.random(10, seed=9),
    }
    return models.model(
        """(float[4,3,16,16] image) => (float[4,10] scores) {
            [conv0] c0 = Conv<pads = [1,1,1,1]>(image, w0, b0)
            [relu0] r0 = Relu(c0)
            [pool] p = GlobalAveragePool(r0)
            [flatten] f = Flatten(p)
            [fc] scores = Gemm(f, w2, b2)
        }""",
        weights,
        name="classifier",
    )


def chain() -> onnx.ModelProto:
    """Three convolutions: no fully connected layer."""
    weights = {
        "w0": models.random(32, 3, 3, 3, seed=1, scale=0.3),
        "w1": models.random(32, 32, 3, 3, seed=2, scale=0.1),
        "w2": models.random(8, 32, 1, 1, seed=3, scale=0.2),
    }
    return models.model(
        """(float[2,3,24,24] image) => (float[2,8,24,24] scores) {
            [conv0] c0 = Conv<pads = [1,1,1,1]>(image, w0)
            [relu0] r0 = Relu(c0)
            [conv1] c1 = Conv<pads = [1,1,1,1]>(r0, w1)
            [relu1] r1 = Relu(c1)
            [conv2] scores = Conv(r1, w2)
        }""",
        weights,
        name="chain",
    )


def branches() -> onnx.ModelProto:
    """Two branches of convolutions of which one has large weights: that one decides the error."""
    weights = {
        "w0": models.random(16, 3, 3, 3, seed=1, scale=0.3),
        "wl": models.random(16, 16, 3, 3, seed=2, scale=2.0),
        "ws": models.random(16, 16, 3, 3, seed=3, scale=0.01),
    }
    return models.model(
        """(float[2,3,24,24] image) => (float[2,16,24,24] scores) {
            [conv0] c0 = Conv<pads = [1,1,1,1]>(image, w0)
            [relu0] r0 = Relu(c0)
            [large] l = Conv<pads = [1,1,1,1]>(r0, wl)
            [small] s = Conv<pads = [1,1,1,1]>(r0, ws)
            [act] t = Tanh(s)
            [sum] scores = Add(l, t)
        }""",
        weights,
        name="branches",
    )


def say(*words: object) -> None:
    print(f"[{time.strftime('%H:%M:%S')}]", *words, flush=True)


def config(data: Path, atol: float, **changes: object) -> DebugBuildConfig:
    check = CheckConfig(data=str(data), tolerances=Tolerances(atol=atol, rtol=0), plots="never", latency_runs=0)
    usual = DebugBuildConfig(
        build=BuildConfig(precision="fp16", options=TensorRTOptions()),
        check=check,
        timeout_seconds=120.0,
        vary=Vary(random_tactics=True),
    )
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def between_groups(errors: list[float]) -> float:
    """The middle, on a logarithmic scale, of the widest gap with at least two errors on either side."""
    logs = sorted(math.log(e) for e in errors)
    gaps = [(b - a, (a + b) / 2) for a, b in itertools.pairwise(logs)]
    return math.exp(max(gaps[1:-1])[1])


@pytest.mark.parametrize("network", [classifier, chain, branches])
def test_bisections_of_several_pairs_convict_one_layer_and_swapping_it_back_heals(
    network: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    proto = network()
    path, data = tmp_path / f"{proto.graph.name}.onnx", tmp_path / "feed.npz"
    onnx.save(proto, path)
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    np.savez(data, image=models.random(*shape, seed=10))
    tracker = MlflowTracker(tmp_path / "mlruns")

    debug_build(path, config(data, 1e9, until=10, seed=500), tracker=tracker, experiment="errors")
    runs = tracker.find("errors", tags={Tag.KIND: "iteration"}, status="finished")
    errors = [v for i in runs for name, v in i.metrics.items() if name[0] == "error" and name[-1] == "max_abs"]
    atol = between_groups(errors)
    say(f"{network.__name__}: largest errors {[f'{e:.3g}' for e in sorted(errors)]}, tolerance {atol:.3g}")

    found = debug_build(path, config(data, atol, until=16), tracker=tracker, experiment="campaign")
    say(
        f"{found.good} good, {found.bad} bad, {found.errors} errors; {found.found.conclusion}: {found.found.summary[:200]}"
    )
    builds = tracker.find("campaign", tags={Tag.KIND: "iteration"}, status="finished")
    good = [info.id for info in builds if info.verdict == "good"]
    bad = [info.id for info in builds if info.verdict == "bad"]
    assert good and bad

    results: list[BisectResult] = [bisect(found.run_id, tracker=tracker)]
    for number, pair in enumerate(itertools.islice(itertools.product(bad, good), PAIRS - 1)):
        results.append(bisect(pair[1], pair[0], BisectConfig(seed=number), tracker=tracker))
    for result in results:
        say(
            f"{result.outcome}, complete: {result.complete}, {result.units} units, {len(result.trials)} builds in "
            f"{result.seconds:.1f} s (own time {result.overhead_seconds:.2f} s): {result.summary}"
        )
        for culprit in result.culprits:
            say("   ", culprit.describe()[:200], "|", culprit.effect and culprit.effect.describe())
        for trial in result.trials:
            say(
                f"      {trial.verdict:5} {trial.error or 0:.3g} counted={trial.counted} taken={trial.taken} "
                f"strayed={trial.strayed} also={trial.also_changed} {trial.reason[:100]}"
            )
    convicted = [result for result in results if result.outcome == "convicted"]
    assert len(convicted) == len(results)
    assert all(result.complete for result in convicted)
