"""Replays by algorithm selectors on the real library: with and without the timing cache of the recorded build."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from trtops.backend.base import Build, Caches
from trtops.backend.onnx.model import Model
from trtops.spec import BuildConfig, TensorRTOptions

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

FP16 = BuildConfig(precision="fp16", options=TensorRTOptions())


@pytest.fixture(scope="module")
def model() -> Model:
    """Five layers, none of which is Myelin's."""
    weights = {f"w{i}": models.random(32, 32, 3, 3, seed=i, scale=0.06) for i in range(3)}
    proto = models.model(
        """(float[4,32,28,28] x) => (float[4,32,28,28] y) {
            [conv0] a = Conv<pads = [1,1,1,1]>(x, w0)
            [relu0] b = Relu(a)
            [conv1] c = Conv<pads = [1,1,1,1]>(b, w1)
            [relu1] d = Relu(c)
            [conv2] y = Conv<pads = [1,1,1,1]>(d, w2)
        }""",
        weights,
        name="replayed",
    )
    return Model.from_proto(proto, "replayed")


def test_trials_are_followed_in_every_layer_with_the_timing_cache_of_the_recorded_build(model: Model) -> None:
    from trtops.backend.trt import TensorRTBackend

    backend = TensorRTBackend()
    recorded = backend.build(model, FP16)
    trial = Caches.replaying(recorded.tactics, recorded.timing_cache)

    builds = {
        "build": recorded,
        "build again": backend.build(model, FP16),
        "replay without a timing cache": backend.build(model, FP16, caches=replace(trial, timing=None)),
        "replay": backend.build(model, FP16, caches=trial),
        "replay again": backend.build(model, FP16, caches=trial),
    }

    print_seconds(builds)
    wanted = [(c.layer, c.tactic) for c in recorded.tactics.choices if c.replayable]
    for name, build in builds.items():
        if name.startswith("replay"):
            assert [(c.layer, c.tactic) for c in build.tactics.choices if c.replayable] == wanted
            assert "the replay was repeated without its timing cache" not in build.log
            assert build.timing_cache is None


def print_seconds(builds: dict[str, Build]) -> None:
    """Seconds of each build, and to ``$OUT/replay_seconds.json``; how long one may take is for ``make bench-gpu`` to say."""
    seconds = {name: round(build.seconds, 3) for name, build in builds.items()}
    print(json.dumps(seconds))
    if out := os.environ.get("OUT"):
        Path(out, "replay_seconds.json").write_text(json.dumps(seconds, indent=1), encoding="utf-8")
