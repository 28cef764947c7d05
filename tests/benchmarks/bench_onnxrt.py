"""What the ONNX Runtime runner adds to a bare session, beside Polygraphy; and what a build costs.

Run it by hand or with ``make bench``. Processor time per inference in microseconds, medians over interleaved rounds.
Exits with 1 if a limit is exceeded.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests import models
from trtops.backend.base import Caches
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt import OnnxrtRunner
from trtops.spec import BuildConfig, OnnxRuntimeOptions

LIMITS_US = {1: 8.0, 20: 60.0}
"""Most that an inference may cost beside the session's own, by number of inputs."""

ROUNDS = 15
CALLS = 400


def identities(count: int) -> onnx.ModelProto:
    """A model that hands ``count`` inputs through."""
    dims = ["batch", 4]
    nodes = [helper.make_node("Identity", [f"x{i}"], [f"y{i}"]) for i in range(count)]
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, dims) for i in range(count)]
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, dims) for i in range(count)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def microseconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median processor time of each call, all timed in turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(CALLS):
                call()
            samples[name].append((time.process_time() - start) / CALLS * 1e6)
    return {name: statistics.median(values) for name, values in samples.items()}


def bench_infer(inputs: int) -> bool:
    """Print what ``infer`` costs with this many inputs; whether it is within the limit."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(identities(inputs).SerializeToString(), options)
    feed = {f"x{i}": np.zeros((1, 4), np.float32) for i in range(inputs)}
    with OnnxrtRunner(session) as ours:
        calls: dict[str, Callable[[], object]] = {
            "bare session": lambda: session.run(None, feed),
            "trtops": lambda: ours.infer(feed),
        }
        try:
            from polygraphy.backend.onnxrt import OnnxrtRunner as TheirRunner
        except ImportError:
            found = microseconds(calls)
        else:
            with TheirRunner(session) as theirs:
                found = microseconds(calls | {"polygraphy": lambda: theirs.infer(feed)})
    bare = found.pop("bare session")
    print(f"infer, {inputs:2} inputs: bare session {bare:7.1f} us")
    for name, value in found.items():
        print(f"                  {name:12} {value:7.1f} us, {value - bare:+8.1f} us over the bare session")
    return found["trtops"] - bare <= LIMITS_US[inputs]


def bench_build() -> None:
    """Print what a build of a small transformer costs: timing candidates, from the timing cache, replayed."""
    backend = engine_backend("onnxruntime")
    model = Model.from_proto(models.transformer().proto)
    config = BuildConfig(options=OnnxRuntimeOptions(allow_approximation=True))
    builds = [backend.build(model, config) for _ in range(7)]
    cached = [backend.build(model, config, caches=Caches(timing=builds[0].timing_cache)) for _ in range(7)]
    replayed = [backend.build(model, config, caches=Caches(replay=builds[0].tactics)) for _ in range(7)]
    for name, made in (("timed", builds), ("timing cache", cached), ("replayed", replayed)):
        print(f"build, {name:12}: {statistics.median(build.seconds for build in made) * 1e3:6.1f} ms")
    bare = []
    for _ in range(7):
        start = time.perf_counter()
        ort.InferenceSession(model.proto().SerializeToString())
        bare.append(time.perf_counter() - start)
    print(f"build, bare session : {statistics.median(bare) * 1e3:6.1f} ms")


if __name__ == "__main__":
    within = [bench_infer(inputs) for inputs in LIMITS_US]
    bench_build()
    if not all(within):
        sys.exit(f"infer is over its limits, {LIMITS_US} us by number of inputs")
