"""TrtRunner on a GPU, compared with a bare loop over the same context and with Polygraphy's runner.

Medians of wall time per inference, host arrays in and out. The bare loop has its arrays in pinned memory already,
copies them, runs the context and waits.

``ops`` compares a conversion, its replay, a gate and a mixture of tactics with Polygraphy's build of the same network.
Goals: a conversion takes at most 1.2 times its build, whose record of tactics takes a tenth of it.
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from tests import models
from tests.benchmarks.harness import Goals, benchmark, in_turns, run_quietly
from tests.benchmarks.networks import Graph
from trtops.backend.base import BuildRequest
from trtops.backend.onnx.model import Model
from trtops.backend.trt import (
    CreateConfig,
    NetworkFromOnnxBytes,
    TensorRTBackend,
    TrtRunner,
    current_gpu,
    engine_bytes_from_network,
    engine_from_bytes,
)
from trtops.backend.trt.library import memory
from trtops.tracking.schema import Artifact


def tiny():
    return models.model("(float[1,16] x) => (float[1,16] y) { y = Relu(x) }"), (1, 16)


def heavy():
    """An image classifier of about 5 ms in FP32 on an H200: 14 convolutions of 256 channels at 128 x 128."""
    weights = {"w0": models.random(256, 3, 3, 3, seed=0, scale=0.2)}
    weights |= {f"w{i}": models.random(256, 256, 3, 3, seed=i, scale=0.02) for i in range(1, 14)}
    lines = ["t0 = Conv<pads = [1,1,1,1], strides = [2,2]>(x, w0)"]
    lines += [f"t{i} = Conv<pads = [1,1,1,1]>(t{i - 1}, w{i})" for i in range(1, 14)]
    body = "\n".join([*lines, "y = GlobalAveragePool(t13)"])
    return models.model(f"(float[1,3,256,256] x) => (float[1,256,1,1] y) {{ {body} }}", weights), (1, 3, 256, 256)


def bulky():
    """25 MB in and 25 MB out, and almost nothing to compute."""
    return models.model("(float[25,512,512] x) => (float[25,512,512] y) { y = Relu(x) }"), (25, 512, 512)


def plan_of(proto):
    network = NetworkFromOnnxBytes(proto.SerializeToString())
    return bytes(engine_bytes_from_network(network, CreateConfig(builder_optimization_level=1)))


class BareLoop:
    """The least that an inference with host arrays can do."""

    def __init__(self, engine, x):
        self.context = engine.create_execution_context()
        self.stream = memory.Stream()
        shapes = [tuple(engine.get_tensor_shape(name)) for name in "xy"]
        self.device = [memory.DeviceArray(shape, x.dtype) for shape in shapes]
        self.pinned = [memory.PinnedArray(array.nbytes) for array in self.device]
        self.pinned[0].view(x.shape, x.dtype)[...] = x
        for name, array in zip("xy", self.device):
            self.context.set_tensor_address(name, array.ptr)

    def __call__(self):
        (x, y), (host_x, host_y) = self.device, self.pinned
        memory.copy(x.ptr, host_x.ptr, host_x.nbytes, "cudaMemcpyHostToDevice", self.stream)
        self.context.execute_async_v3(self.stream.ptr)
        memory.copy(host_y.ptr, y.ptr, host_y.nbytes, "cudaMemcpyDeviceToHost", self.stream)
        self.stream.synchronize()


def measure(title, make, count):
    """Median seconds of the bare loop, of ours and of Polygraphy's runner."""
    from polygraphy.backend.trt import TrtRunner as TheirRunner

    proto, shape = make()
    engine = engine_from_bytes(plan_of(proto))
    x = models.random(*shape)
    with TrtRunner(engine) as ours, TheirRunner(engine) as theirs:
        calls = {
            "bare": BareLoop(engine, x),
            "ours": lambda: ours.infer({"x": x}),
            "theirs": lambda: theirs.infer({"x": x}),
        }
        in_turns(calls, 10)
        gc.disable()
        medians = in_turns(calls, count, clock=time.perf_counter, pick=statistics.median)
        gc.enable()
        device = ours.last_device_time()
    found_us = {name: f"{seconds * 1e6:.1f} us" for name, seconds in medians.items()}
    print(title, found_us, f"{device * 1e6:.1f} us", flush=True)
    return medians


_START = """
import sys, time
started = time.perf_counter()
import numpy as np
from {0}.backend.trt import EngineFromBytes, TrtRunner
from {0}.backend.common import BytesFromPath
with TrtRunner(EngineFromBytes(BytesFromPath(sys.argv[1]))) as runner:
    runner.infer({{"x": np.zeros((1, 3, 256, 256), np.float32)}})
    print("\\nseconds", time.perf_counter() - started)
"""


def start_to_first_inference(folder: Path):
    """Median seconds from a fresh process to its first result; the first of ten rounds is dropped."""
    path = folder / "heavy.engine"
    path.write_bytes(plan_of(heavy()[0]))

    def started(package: str) -> float:
        output = run_quietly([sys.executable, "-c", _START.format(package), str(path)], folder)
        return float(output.split("\nseconds ")[1].split()[0])

    times = [{package: started(package) for package in ("trtops", "polygraphy")} for _ in range(10)]
    return {package: statistics.median(round_times[package] for round_times in times[1:]) for package in times[0]}


def cnn() -> onnx.ModelProto:
    """Five convolutions with a stem, a branch that is added, a pool and a head."""
    b = Graph()
    x = b.op("Relu", b.conv("x", 3, 64, 3))
    x = b.op("Relu", b.op("Add", b.conv(x, 64, 64, 3), b.conv(x, 64, 64, 1)))
    x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Relu", b.conv(x, 64, 128, 3, 2))
    return b.model({"x": (8, 3, 56, 56)}, b.conv(x, 128, 16, 1))


def measure_ops(goals: Goals, folder: Path) -> None:
    """Wall seconds of ops on the network ``cnn`` in FP16, each after one that has started the child process."""
    from polygraphy.backend.trt import CreateConfig as TheirConfig
    from polygraphy.backend.trt import EngineBytesFromNetwork as TheirBytes
    from polygraphy.backend.trt import NetworkFromOnnxBytes as TheirNetwork

    from trtops import BuildConfig, ConvertConfig, TensorRTOptions, convert
    from trtops.ops.gate.op import gate
    from trtops.ops.gate.policy import GateConfig
    from trtops.tracking.mlflow import MlflowTracker

    path, tracker = folder / "cnn.onnx", MlflowTracker(folder / "mlruns")
    onnx.save(cnn(), path)
    record, cache = folder / "replay.json", folder / "timing.cache"
    seconds: dict[str, float] = {}

    def timed(title: str, call: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = call()
        seconds[title] = time.perf_counter() - started
        print(f"{title:34}{seconds[title]:8.2f} s  {getattr(result, 'verdict', '')}", flush=True)
        return result

    def converted(seed: int | None = None, **changes: Any) -> Any:
        options = TensorRTOptions(tactic_seed=seed)
        config = ConvertConfig(build=BuildConfig(precision="fp16", options=options), rebuild=True, isolated=True)
        return convert(path, replace(config, **changes), tracker=tracker)

    def theirs() -> bytes:
        network = TheirNetwork(path.read_bytes())
        return bytes(TheirBytes(network, TheirConfig(fp16=True))())

    for title in ("Polygraphy's build, first", "Polygraphy's build"):
        timed(title, theirs)
    backend, model, fp16 = TensorRTBackend(), Model.load(path), BuildConfig(precision="fp16", options=TensorRTOptions())
    unrecorded = replace(fp16, options=TensorRTOptions(record_tactics=False))
    for title, config in (("build without a record", unrecorded), ("build with a record", fp16)):
        timed(title, lambda config=config: backend.build(BuildRequest(model, config)))
    for title in ("convert, first", "convert"):
        conversion = timed(title, converted)
    print(tracker.load(conversion.run_id).read_bytes(Artifact.TIMING).decode(), flush=True)
    stored = tracker.load(conversion.run_id)
    record.write_bytes(stored.read_bytes(Artifact.TACTICS))
    cache.write_bytes(stored.read_bytes(Artifact.TIMING_CACHE))
    timed("convert with its timing cache", lambda: converted(timing_cache=str(cache)))
    timed("replay with the timing cache", lambda: converted(replay=str(record), timing_cache=str(cache)))
    timed("random tactics, as in a campaign", lambda: converted(seed=1))
    for title in ("gate, no accepted engine", "gate"):
        timed(title, lambda: gate(path, GateConfig(build=fp16, minutes=3), tracker=tracker))
    note = f"its build takes {conversion.build_seconds:.2f} s"
    goals.at_most("convert, of its build", seconds["convert"] / conversion.build_seconds, 1.2, "times", note)
    recorded = seconds["build with a record"] / seconds["build without a record"]
    goals.at_most("record of tactics, of a build", recorded, 1.1, "times")
    goals.at_most(
        "replay, of Polygraphy's build",
        seconds["replay with the timing cache"] / seconds["Polygraphy's build"],
        0.5,
        "times",
    )


def measure_runner(goals: Goals, folder: Path) -> None:
    print(current_gpu().to_json(indent=None))
    small, large, bulk = measure("tiny", tiny, 2000), measure("5 ms", heavy, 200), measure("50 MB", bulky, 100)
    start = start_to_first_inference(folder)
    goals.at_most("tiny: added to the bare loop", (small["ours"] - small["bare"]) * 1e6, 30, "us")
    goals.at_most("5 ms: added to the bare loop", (large["ours"] / large["bare"] - 1) * 100, 5, "%")
    goals.at_most("50 MB: share of Polygraphy's time", bulk["ours"] / bulk["theirs"], 0.5, "times")
    goals.at_most("start to first inference", start["trtops"], start["polygraphy"])


def main() -> None:
    with benchmark() as (goals, folder):
        if sys.argv[1:2] == ["ops"]:
            measure_ops(goals, folder)
        else:
            measure_runner(goals, folder)


if __name__ == "__main__":
    main()
