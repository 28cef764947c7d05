"""TrtRunner on a GPU, compared with a bare loop over the same context and with Polygraphy's runner.

Medians of wall time per inference, host arrays in and out. The bare loop has its arrays in pinned memory already,
copies them, runs the context and waits.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests import models
from tests.benchmarks.harness import Goals, in_turns, run_quietly
from trtops.backend.trt import (
    CreateConfig,
    NetworkFromOnnxBytes,
    TrtRunner,
    current_gpu,
    engine_bytes_from_network,
    engine_from_bytes,
)
from trtops.backend.trt.library import memory


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
    shape = (25, 512, 512)
    return models.model("(float[25,512,512] x) => (float[25,512,512] y) { y = Relu(x) }"), shape


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
        found = in_turns(calls, count, clock=time.perf_counter, pick=statistics.median)
        gc.enable()
        device = ours.last_device_time()
    print(
        title,
        {name: f"{seconds * 1e6:.1f} us" for name, seconds in found.items()},
        f"{device * 1e6:.1f} us",
        flush=True,
    )
    return found


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


def start_to_first_inference(rounds=9):
    """Median seconds from a fresh process to its first result."""
    times = {"trtops": [], "polygraphy": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heavy.engine"
        path.write_bytes(plan_of(heavy()[0]))
        for _ in range(1 + rounds):
            for package, found in times.items():
                output = run_quietly([sys.executable, "-c", _START.format(package), str(path)], folder)
                [line] = [line for line in output.splitlines() if line.startswith("seconds ")]
                found.append(float(line.split()[1]))
    return {package: statistics.median(found[1:]) for package, found in times.items()}


def main():
    print(current_gpu().to_json(indent=None))
    small, large, bulk = measure("tiny", tiny, 2000), measure("5 ms", heavy, 200), measure("50 MB", bulky, 100)
    start = start_to_first_inference()
    goals = Goals()
    goals.at_most("tiny: added to the bare loop", (small["ours"] - small["bare"]) * 1e6, 30, "us")
    goals.at_most("5 ms: added to the bare loop", (large["ours"] / large["bare"] - 1) * 100, 5, "%")
    goals.at_most("50 MB: share of Polygraphy's time", bulk["ours"] / bulk["theirs"], 0.5, "times")
    goals.at_most("start to first inference", start["trtops"], start["polygraphy"])
    goals.exit()


if __name__ == "__main__":
    main()
