"""Bisections on TensorRT and a real GPU: FP16 builds of small networks with random tactics, and replays that mix two of
them.

**Planted culprits.** Engines are evaluated as ever, but those in which one layer got certain tactics give outputs a
tenth too large, as if these kernels were broken: every second tactic that the layer is seen with is one of them.
Building, choosing, recording and replaying are TensorRT's own.

**Natural ones.** In each network one layer adds numbers that nearly cancel, first all positive ones, then all negative
ones, and every number is exact in FP16: kernels that add in FP32 are right to the last bit, and those that add in FP16
are off by tenths. Nothing else in it is off by more than some thousandths. Builds of 8.6 often get kernels of one kind
alone: then their errors do not fall into groups, and there is nothing to find.

Run with ``-s`` to read the log. ``TRTOPS_BISECT_PAIRS`` says how many pairs of builds of each network are bisected,
``TRTOPS_BISECT_MINUTES`` after how many minutes no further pair is begun, ``TRTOPS_BISECT_SEED`` from which seed builds
and coins are drawn, and ``OUT`` names a folder that keeps a log of each network, pair by pair.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
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
from trtops.ops.campaign.bisect import bisect
from trtops.ops.campaign.bisect_result import BisectConfig, BisectResult
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.campaign.promote import promote, resolve
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Tag

PAIRS = int(os.environ.get("TRTOPS_BISECT_PAIRS", "2"))
MOST_TRIALS = 8
MINUTES = float(os.environ.get("TRTOPS_BISECT_MINUTES", "20"))
SEED = int(os.environ.get("TRTOPS_BISECT_SEED", "500"))
PROBES = 5  # builds whose errors say where the tolerance is to lie
BUILDS = 8

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@dataclasses.dataclass(frozen=True)
class Network:
    """A model, a feed, and the layer that decides its error."""

    proto: onnx.ModelProto
    feed: dict[str, np.ndarray]
    culprit: str

    @property
    def name(self) -> str:
        return self.proto.graph.name


def cancelling(*shape: int, axis: int, seed: int, scale: float) -> np.ndarray:
    """Weights that add up to nearly nothing along an axis: its second half is minus its first, and a little more."""
    rng = np.random.default_rng(seed)
    half = list(shape)
    half[axis] //= 2
    large = scale + rng.integers(0, 9, half) / 4
    little = rng.integers(-4, 5, half) * scale / 1024
    return np.concatenate((large, little - large), axis).astype(np.float32)


def twice(array: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate((array, array), axis)


def eighths(*shape: int, seed: int) -> np.ndarray:
    """Numbers between 0 and 2, multiples of an eighth."""
    return (np.random.default_rng(seed).integers(0, 17, shape) / 8).astype(np.float32)


def stem(channels: int) -> dict[str, np.ndarray]:
    """The first convolution: every channel twice, half the channels apart, so that the next layer can cancel them."""
    return {
        "w0": twice(models.random(channels // 2, 3, 3, 3, seed=1, scale=0.2), 0),
        "b0": np.ones(channels, np.float32),
    }


def pointwise() -> Network:
    """A convolution of kernel 1 decides."""
    weights = {
        **stem(256),
        "w1": cancelling(128, 256, 1, 1, axis=1, seed=2, scale=16),
        "w2": models.random(8, 128, 1, 1, seed=3, scale=0.05),
    }
    proto = models.model(
        """(float[8,3,32,32] image) => (float[8,8,32,32] scores) {
            [conv0] c0 = Conv<pads = [1,1,1,1]>(image, w0, b0)
            [relu0] r0 = Relu(c0)
            [planted] c1 = Conv(r0, w1)
            [relu1] r1 = Relu(c1)
            [head] scores = Conv(r1, w2)
        }""",
        weights,
        name="pointwise",
    )
    return Network(proto, {"image": eighths(8, 3, 32, 32, seed=10)}, "planted")


def strided() -> Network:
    """A convolution of kernel 3 and stride 2 decides."""
    weights = {
        **stem(64),
        "w1": cancelling(64, 64, 3, 3, axis=1, seed=2, scale=16),
        "w2": models.random(8, 64, 1, 1, seed=3, scale=0.05),
    }
    proto = models.model(
        """(float[2,3,16,16] image) => (float[2,8,8,8] scores) {
            [conv0] c0 = Conv<pads = [1,1,1,1]>(image, w0, b0)
            [relu0] r0 = Relu(c0)
            [planted] c1 = Conv<pads = [1,1,1,1], strides = [2,2]>(r0, w1)
            [relu1] r1 = Relu(c1)
            [head] scores = Conv(r1, w2)
        }""",
        weights,
        name="strided",
    )
    return Network(proto, {"image": eighths(2, 3, 16, 16, seed=10)}, "planted")


def upsampling() -> Network:
    """A transposed convolution decides."""
    weights = {
        **stem(256),
        "w1": cancelling(256, 64, 2, 2, axis=0, seed=2, scale=16),
        "w2": models.random(8, 64, 1, 1, seed=3, scale=0.05),
    }
    proto = models.model(
        """(float[8,3,16,16] image) => (float[8,8,32,32] scores) {
            [conv0] c0 = Conv<pads = [1,1,1,1]>(image, w0, b0)
            [relu0] r0 = Relu(c0)
            [planted] c1 = ConvTranspose<strides = [2,2]>(r0, w1)
            [relu1] r1 = Relu(c1)
            [head] scores = Conv(r1, w2)
        }""",
        weights,
        name="upsampling",
    )
    return Network(proto, {"image": eighths(8, 3, 16, 16, seed=10)}, "planted")


def of_stride_two() -> Network:
    """Two convolutions, one of stride two to plant the fault in, and two more layers."""
    weights = {
        "w0": models.random(64, 16, 3, 3, seed=1, scale=0.1),
        "w1": models.random(64, 64, 3, 3, seed=2, scale=0.05),
        "w2": models.random(64, 64, 3, 3, seed=3, scale=0.07),
        "w3": models.random(64, 64, 3, 3, seed=4, scale=0.05),
        "w4": models.random(8, 64, 1, 1, seed=5, scale=0.1),
    }
    proto = models.model(
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
    return Network(proto, {"image": models.random(4, 16, 16, 16, seed=10)}, "planted")


@dataclasses.dataclass(frozen=True)
class Planted:
    """Evaluates an engine in a campaign's child: with outputs a tenth too large if a layer of it got a tactic that is
    planted.

    Attributes:
        layer: Part of the layer's name.
        seen: A file that keeps the tactics that the layer was seen with; every second one is planted.
    """

    layer: str
    seen: Path

    def __call__(self, engine: Engine, *others: Any) -> Any:
        wrong = self._is_planted(engine)
        with mock.patch.object(iteration, "engine_backend", lambda name: _Scaled(engine_backend(name), wrong)):
            return iteration.evaluate_in_child(engine, *others)

    def _is_planted(self, engine: Engine) -> bool:
        layers = (found.to_layer() for found in inspector.read_layers(engine_from_bytes(bytes(engine.plan))))
        # Copies between formats are called after the layer that they serve.
        mine = (x for x in layers if self.layer in x.name and not x.name.startswith(("Reformatting", "reshape_")))
        tactic = "; ".join(f"{layer.name}: {layer.tactic}" for layer in mine)
        known = self.seen.read_text().splitlines() if self.seen.exists() else []
        if tactic not in known:
            known.append(tactic)
            self.seen.write_text("\n".join(known))
        return known.index(tactic) % 2 == 1


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


def config(data: Path, atol: float, **changes: Any) -> DebugBuildConfig:
    check = CheckConfig(data=str(data), tolerances=Tolerances(atol=atol, rtol=0), plots="never", latency_runs=0)
    usual = DebugBuildConfig(
        build=BuildConfig(precision="fp16", options=TensorRTOptions()),
        check=check,
        timeout_seconds=120.0,
        random_tactics=True,
        seed=SEED,
    )
    return dataclasses.replace(usual, **changes)


class Log:
    """Lines on the terminal and, where ``OUT`` names a folder, in a file of a network."""

    def __init__(self, name: str) -> None:
        self._file = Path(os.environ["OUT"], f"bisect-{name}.log") if "OUT" in os.environ else None

    def __call__(self, *words: object) -> None:
        line = " ".join(map(str, (f"[{time.strftime('%H:%M:%S')}]", *words)))
        print(line, flush=True)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def tell(self, result: BisectResult) -> None:
        self(
            f"{result.outcome}, complete: {result.complete}, {result.units} units, {len(result.trials)} builds: "
            f"{result.summary}"
        )
        for trial in result.trials:
            self(
                f"      {trial.verdict:5} {trial.error or 0:.3g} counted={trial.counted} taken={trial.taken} "
                f"strayed={trial.strayed}"
            )


@pytest.fixture(autouse=True)
def lazy_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load a kernel when it is first used: building a small engine takes a fraction of the time."""
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")


BEGAN = time.monotonic()


def pairs_of(tracker: MlflowTracker, campaign: str) -> list[tuple[str, str]]:
    """The good builds of a campaign, and those with bad outputs, in pairs; each is in as many as any other at first.

    Other builds may be bad for having FP32 kernels alone, and what makes them so is not what was planted.
    """
    builds = [info for info in tracker.find(parent=campaign) if info.kind == "iteration"]
    good = [info.id for info in builds if info.verdict == "good"]
    bad = [info.id for info in builds if "outputs" in info.tags.get(Tag.BAD_IN, "")]
    assert good and bad, "nothing to mix"
    places = sorted(itertools.product(range(len(good)), range(len(bad))), key=lambda p: ((p[0] + p[1]) % len(good), p))
    return [(good[i], bad[j]) for i, j in places]


def check_pairs(network: Network, pairs: Sequence[tuple[str, str]], tracker: MlflowTracker, log: Log) -> None:
    """Bisect a number of pairs, pairs again with another coin where there are fewer; and look at all
    results."""
    named, trials, complete = [], [], []
    for number, (good, bad) in enumerate(itertools.islice(itertools.cycle(pairs), PAIRS)):
        if time.monotonic() - BEGAN > 60 * MINUTES:
            log(f"{network.name}: no time for more than {number} pairs")
            break
        result = bisect(good, bad, BisectConfig(seed=SEED + number, max_builds=16), tracker=tracker)
        log.tell(result)
        named.append({unit.name for culprit in result.culprits for unit in culprit.units})
        trials.append(len(result.trials))
        complete.append(result.complete)

    right = [len(names) == 1 and network.culprit in next(iter(names)) for names in named]
    log(f"{network.name}: the planted layer alone named in {sum(right)} of {len(right)} pairs; builds: {trials}")
    assert named and all(right), named
    assert all(complete)
    assert max(trials) <= MOST_TRIALS


def written(network: Network, folder: Path) -> tuple[Path, Path]:
    model, data = folder / f"{network.name}.onnx", folder / f"{network.name}.npz"
    onnx.save(network.proto, model)
    np.savez(data, **network.feed)
    return model, data


def planted_config(network: Network, model: Path, data: Path, **changes: Any) -> DebugBuildConfig:
    """Few tactics are offered and timed; the tolerance lies below what is planted, and above what FP16 does."""
    outputs = onnxruntime.InferenceSession(model).run(None, network.feed)
    asked = config(data, 0.05 * max(float(np.abs(output).max()) for output in outputs), **changes)
    return dataclasses.replace(
        asked, build=BuildConfig(precision="fp16", options=TensorRTOptions(optimization_level=1))
    )


def test_bisections_name_the_planted_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, network = MlflowTracker(tmp_path / "mlruns"), of_stride_two()
    log = Log(network.name)
    model, data = written(network, tmp_path)
    monkeypatch.setattr(iteration, "evaluate_in_child", Planted(network.culprit, tmp_path / "seen.txt"))
    began = time.monotonic()
    campaign = debug_build(model, planted_config(network, model, data, until=BUILDS), tracker=tracker)
    log(
        f"{network.name}: {campaign.good} good, {campaign.bad} bad, {campaign.errors} failed in "
        f"{time.monotonic() - began:.0f} s; tactics: {(tmp_path / 'seen.txt').read_text().splitlines()}"
    )
    check_pairs(network, pairs_of(tracker, campaign.run_id), tracker, log)


def test_fp16_campaign_ends_with_a_promoted_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until decided, mixtures and all; how long it takes is in the log, and in ``promoted.json``."""
    tracker, network = MlflowTracker(tmp_path / "mlruns"), of_stride_two()
    log = Log("promoted")
    model, data = written(network, tmp_path)
    monkeypatch.setattr(iteration, "evaluate_in_child", Planted(network.culprit, tmp_path / "seen.txt"))
    began = time.monotonic()
    asked = planted_config(network, model, data, max_iterations=40, clean_builds=6, max_minutes=4.0)
    campaign = debug_build(model, asked, tracker=tracker, experiment="campaign")
    decided = time.monotonic() - began
    for bisection in campaign.bisections:
        log.tell(bisection)
    good = next(info for info in tracker.find(parent=campaign.run_id) if info.verdict == "good")
    promoted = promote(good.id, tracker=tracker)
    figures = {
        "network": network.name,
        "confirmed": campaign.confirmed,
        "builds": campaign.iterations,
        "mixtures": campaign.mixtures,
        "seconds until decided": round(decided, 1),
        "seconds until promoted": round(time.monotonic() - began, 1),
    }
    log(json.dumps(figures))
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "promoted.json").write_text(json.dumps(figures), encoding="utf-8")

    assert resolve(model, tracker=tracker, backend="tensorrt").run_id == promoted.run_id
    assert campaign.confirmed and all(network.culprit in text for text in campaign.confirmed)
