"""Seconds of a replay compared with those of a build, on TensorRT with algorithm selectors (8.6).

    python -m tests.benchmarks.bench_trt_replay small cnn transformer resnet50

Each variant builds the same network in FP16. Printed for each: wall seconds, how often TensorRT called the selector,
and how many layers have the kernel of the recorded build. Goal: the fastest replay takes a fifth of a build.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import onnx

from tests import models
from tests.benchmarks.harness import Goals
from tests.benchmarks.networks import resnet50
from trtops import errors
from trtops.backend.trt import (
    CreateConfig,
    TacticRecorder,
    TacticReplayData,
    TacticReplayer,
    engine_from_bytes,
    network_from_onnx_bytes,
)
from trtops.backend.trt.building.engine import build_plan
from trtops.backend.trt.building.profile import Profile
from trtops.backend.trt.choices import timing_cache
from trtops.backend.trt.describe.inspector import read_layers

COPY = "Reformatting CopyNode"  # no selector is called for these


def small() -> onnx.ModelProto:
    """Two convolutions of 32 channels with an activation between them."""
    weights = {f"w{i}": models.random(32, 32, 3, 3, seed=i, scale=0.08) for i in range(2)}
    text = """(float[4,32,28,28] x) => (float[4,32,28,28] y) {
        [conv0] a = Conv<pads = [1,1,1,1]>(x, w0)
        [relu0] b = Relu(a)
        [conv1] y = Conv<pads = [1,1,1,1]>(b, w1)
    }"""
    return models.model(text, weights, name="small")


def cnn() -> onnx.ModelProto:
    """Five convolutions with a stem, a branch that is added, a pool and a head."""
    sizes = {
        "w0": (64, 3, 3, 3),
        "w1": (64, 64, 3, 3),
        "w2": (64, 64, 1, 1),
        "w3": (128, 64, 3, 3),
        "w4": (16, 128, 1, 1),
    }
    weights = {name: models.random(*shape, seed=i, scale=0.08) for i, (name, shape) in enumerate(sizes.items())}
    text = """(float[8,3,56,56] x) => (float[8,16,14,14] y) {
        [conv0] c0 = Conv<pads = [1,1,1,1]>(x, w0)
        [relu0] r0 = Relu(c0)
        [conv1] c1 = Conv<pads = [1,1,1,1]>(r0, w1)
        [conv2] c2 = Conv(r0, w2)
        [add] a = Add(c1, c2)
        [relu1] r1 = Relu(a)
        [pool] p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r1)
        [conv3] c3 = Conv<pads = [1,1,1,1], strides = [2,2]>(p, w3)
        [relu3] r3 = Relu(c3)
        [conv4] y = Conv(r3, w4)
    }"""
    return models.model(text, weights, name="cnn")


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "small": small,
    "cnn": cnn,
    "transformer": lambda: models.transformer().proto,
    "resnet50": resnet50,
}


class Bench:
    """Builds variants of one network, and keeps their timing caches for later ones."""

    def __init__(self, name: str) -> None:
        self.name, self.data = name, MODELS[name]().SerializeToString()
        self.seconds: dict[str, float] = {}
        self.caches: dict[str, bytes] = {}
        self.kernels: set[tuple[str, str, str]] = set()

    def build(self, title: str, *, selector: Any = None, cache: str | None = None, level: int | None = None) -> None:
        """Build once with the timing cache of an earlier variant; ``""`` is an empty cache, None disables it."""
        builder, network, _parser = network_from_onnx_bytes(self.data)
        options: dict[str, Any] = {} if level is None else {"builder_optimization_level": level}
        if cache is not None:
            options["load_timing_cache"] = self.caches.get(cache, b"")
        if self.name == "resnet50":
            options["profiles"] = [Profile({"image": ((4, 3, 224, 224),) * 3})]
        config = CreateConfig(algorithm_selector=selector, fp16=True, **options)(builder, network)
        calls = count_calls(selector)
        started = time.perf_counter()
        try:
            plan = bytes(build_plan(builder, network, config, selector=selector))
        except errors.TrtopsError as exc:
            print(f"{self.name}: {title}: {str(exc)[:300]}", flush=True)
            return
        self.seconds[title] = time.perf_counter() - started
        if (left := timing_cache.collect(config, None, None, 0.0)) is not None:
            self.caches[title] = left.data
        layers = {(x.name, str(x.tactic), str(x.tactic_value)) for x in read_layers(engine_from_bytes(plan))}
        layers = {layer for layer in layers if not layer[0].startswith(COPY)}
        self.kernels = self.kernels or (layers if title == "recorded" else set())
        same = f"{len(layers & self.kernels)} of {len(layers)} layers as recorded, {len(calls)} calls of the selector"
        print(f"{self.name}: {self.seconds[title]:6.2f} s: {title}: {same}", flush=True)


def count_calls(selector: Any) -> list[str]:
    """Collects the layer of each call; the class is made for this selector alone."""
    calls: list[str] = []
    if selector is not None:
        kind = type(selector)
        answer = kind.select_algorithms

        def counted(selector: Any, context: Any, choices: list[Any]) -> list[int]:
            calls.append(context.name)
            return list(answer(selector, context, choices))

        kind.select_algorithms = counted
    return calls


def measure(name: str, goals: Goals) -> None:
    bench, recorded = Bench(name), TacticReplayData()

    def replay(title: str, **options: Any) -> None:
        bench.build(f"replay, {title}", selector=TacticReplayer(recorded), **options)

    bench.build("first build of the process", level=0)
    bench.build("build")
    bench.build("build with its own cache", cache="build")
    bench.build("recorded", selector=TacticRecorder(recorded), cache="")
    replay("cache disabled")
    replay("empty cache", cache="")
    replay("cache of the recorded build", cache="recorded")
    replay("cache of the unwatched build", cache="build")
    replay("cache of a replay", cache="replay, empty cache")
    replay("optimization level 1", cache="", level=1)
    replay("optimization level 0", cache="", level=0)
    fastest = min(seconds for title, seconds in bench.seconds.items() if title.startswith("replay"))
    goals.at_most(f"{name}: fastest replay", fastest, bench.seconds["build"] / 5)


def main() -> None:
    goals = Goals()
    for name in sys.argv[1:] or ["small"]:
        measure(name, goals)
    goals.exit()


if __name__ == "__main__":
    main()
