"""Bisections on TensorRT and a real GPU: FP16 builds of a small network with random tactics, and replays that mix two.

Engines in which one layer got certain tactics give outputs a tenth too large, as if these kernels were broken: every
second tactic that the layer is seen with is one of them. Building, recording and replaying are TensorRT's own.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest

from tests import models
from trtops.backend.base import Engine
from trtops.backend.engines import engine_backend
from trtops.backend.trt.building.engine import engine_from_bytes
from trtops.backend.trt.describe import inspector
from trtops.comparator.report import Tolerances
from trtops.ops.campaign import iteration
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.registry.accepted import resolve
from trtops.ops.registry.promote import promote
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking.mlflow import MlflowTracker

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(1500)]


def of_stride_two() -> onnx.ModelProto:
    """Two convolutions, one of stride two (``planted``) to plant the fault in, and two more layers."""
    weights = {
        "w0": models.random(64, 16, 3, 3, seed=1, scale=0.1),
        "w1": models.random(64, 64, 3, 3, seed=2, scale=0.05),
        "w2": models.random(64, 64, 3, 3, seed=3, scale=0.07),
        "w3": models.random(64, 64, 3, 3, seed=4, scale=0.05),
        "w4": models.random(8, 64, 1, 1, seed=5, scale=0.1),
    }
    return models.model(
        """(float[4,16,16,16] image) => (float[N,M] scores) {
            [conv0] c0 = Conv<pads = [1,1,1,1]>(image, w0)
            [relu0] r0 = Relu(c0)
            [conv1] c1 = Conv<pads = [1,1,1,1]>(r0, w1)
            [relu1] r1 = Relu(c1)
            [planted] g = Conv<pads = [1,1,1,1], strides = [2,2]>(r1, w2)
            [relu2] r2 = Relu(g)
            [conv3] c3 = Conv<pads = [1,1,1,1]>(r2, w3)
            [relu3] r3 = Relu(c3)
            [head] c4 = Conv(r3, w4)
            [flatten] scores = Flatten(c4)
        }""",
        weights,
        name="stride",
    )


@dataclasses.dataclass(frozen=True)
class Planted:
    """Evaluates an engine in a campaign's child, with outputs a tenth too large if a layer of it got a planted tactic.

    ``layer`` is part of the layer's name. Every second tactic is planted that it was seen with, as the file lists them.
    """

    layer: str
    seen: Path

    def __call__(self, engine: Engine, *others: Any) -> Any:
        wrong = self._is_planted(engine)
        with mock.patch.object(iteration, "engine_backend", lambda name: _Scaled(engine_backend(name), wrong)):
            return iteration.evaluate_in_child(engine, *others)

    def _is_planted(self, engine: Engine) -> bool:
        layers = (
            engine_layer.to_layer() for engine_layer in inspector.read_layers(engine_from_bytes(bytes(engine.plan)))
        )
        # Copies between formats are called after the layer that they serve.
        mine = (x for x in layers if self.layer in x.name and not x.name.startswith(("Reformatting", "reshape_")))
        tactic = "; ".join(f"{layer.name}: {layer.tactic}" for layer in mine)
        seen_tactics = self.seen.read_text().splitlines() if self.seen.exists() else []
        if tactic not in seen_tactics:
            seen_tactics.append(tactic)
            self.seen.write_text("\n".join(seen_tactics))
        return seen_tactics.index(tactic) % 2 == 1


class _Scaled:
    """A back end whose engines give outputs a tenth too large, or as they are."""

    def __init__(self, backend: Any, wrong: bool) -> None:
        self._backend, self._wrong = backend, wrong

    @contextlib.contextmanager
    def runner(self, engine: Engine) -> Iterator[Any]:
        with self._backend.runner(engine) as runner:
            infer = runner.infer

            def scaled(*args: Any, **kwargs: Any) -> Mapping[str, Any]:
                outputs = infer(*args, **kwargs)
                return {name: np.array(array) * np.float32(1.1) for name, array in outputs.items()}

            runner.infer = scaled if self._wrong else infer
            yield runner


@pytest.fixture(autouse=True)
def lazy_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load a kernel when it is first used: building a small engine takes a fraction of the time."""
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")


def test_fp16_campaign_ends_with_a_promoted_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until decided, mixtures and all."""
    tracker = MlflowTracker(tmp_path / "mlruns")
    model, data = tmp_path / "stride.onnx", tmp_path / "stride.npz"
    feed = {"image": models.random(4, 16, 16, 16, seed=10)}
    onnx.save(of_stride_two(), model)
    np.savez(data, **feed)
    # The tolerance lies below what is planted, and above what FP16 does.
    outputs = onnxruntime.InferenceSession(model).run(None, feed)
    tolerances = Tolerances(atol=0.05 * max(float(np.abs(output).max()) for output in outputs), rtol=0)
    config = DebugBuildConfig(
        build=BuildConfig(precision="fp16", options=TensorRTOptions(optimization_level=1)),  # few tactics to time
        check=CheckConfig(data=str(data), tolerances=tolerances, plots="never", latency_runs=0),
        timeout_seconds=120.0,
        random_tactics=True,
        seed=500,
        max_iterations=40,
        complete=True,
        clean_builds=6,
        max_minutes=20.0,
    )
    monkeypatch.setattr(iteration, "evaluate_in_child", Planted("planted", tmp_path / "seen.txt"))

    campaign = debug_build(model, config, tracker=tracker, experiment="campaign")
    good = next(info for info in tracker.find(parent=campaign.run_id) if info.verdict == "good")
    promoted = promote(good.id, tracker=tracker)

    assert resolve(model, tracker=tracker, backend="tensorrt").run_id == promoted.run_id
    assert campaign.confirmed and all("planted" in text for text in campaign.confirmed)
