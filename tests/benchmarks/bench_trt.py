"""TrtRunner against a bare loop over the same context, and against Polygraphy's runner; on a GPU, all in one run.

    python tests/benchmarks/bench_trt.py

Medians of wall time per inference, host arrays in and out. The bare loop has its arrays in pinned memory already,
copies them, runs the context and waits: nothing can be taken away from it. Polygraphy's runner gets the same engine.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests import models
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
    """An image classifier of about 5 ms in FP32 on an H200: 13 convolutions of 256 channels at 128 x 128."""
    weights = {"w0": models.random(256, 3, 3, 3, seed=0, scale=0.2)}
    weights |= {f"w{i}": models.random(256, 256, 3, 3, seed=i, scale=0.02) for i in range(1, 14)}
    lines = ["t0 = Conv<pads = [1,1,1,1], strides = [2,2]>(x, w0)"]
    lines += [f"t{i} = Conv<pads = [1,1,1,1]>(t{i - 1}, w{i})" for i in range(1, 14)]
    body = "\n".join([*lines, "y = GlobalAveragePool(t13)"])
    return models.model(f"(float[1,3,256,256] x) => (float[1,256,1,1] y) {{ {body} }}", weights), (1, 3, 256, 256)


def bulky():
    """25 MB in and 25 MB out, and next to nothing to compute."""
    shape = (25, 512, 512)
    dims = ",".join(map(str, shape))
    return models.model(f"(float[{dims}] x) => (float[{dims}] y) {{ y = Relu(x) }}"), shape


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
        memory.copy(
            self.device[0].ptr, self.pinned[0].ptr, self.pinned[0].nbytes, "cudaMemcpyHostToDevice", self.stream
        )
        self.context.execute_async_v3(self.stream.ptr)
        memory.copy(
            self.pinned[1].ptr, self.device[1].ptr, self.pinned[1].nbytes, "cudaMemcpyDeviceToHost", self.stream
        )
        self.stream.synchronize()


def medians(count, **functions):
    """Median seconds of each function, called in turn so that clocks and neighbours treat them alike."""
    times = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(10):
            function()
    gc.disable()
    for _ in range(count):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - started)
    gc.enable()
    return {name: statistics.median(values) for name, values in times.items()}


def compare(title, make, count):
    from polygraphy.backend.trt import TrtRunner as FieldRunner

    proto, shape = make()
    plan = engine_bytes_from_network(
        NetworkFromOnnxBytes(proto.SerializeToString()), CreateConfig(builder_optimization_level=1)
    )
    engine = engine_from_bytes(plan)
    x = models.random(*shape)
    bare = BareLoop(engine, x)
    with TrtRunner(engine) as runner, FieldRunner(engine) as field:
        feed = {"x": x}
        found = medians(count, bare=bare, trtops=lambda: runner.infer(feed), field=lambda: field.infer(feed))
        timing = runner.last_timing()
    row = {
        "model": title,
        **{f"{name}_us": round(seconds * 1e6, 1) for name, seconds in found.items()},
        "over_bare_us": round((found["trtops"] - found["bare"]) * 1e6, 1),
        "over_bare_percent": round((found["trtops"] / found["bare"] - 1) * 100, 2),
        "times_faster_than_field": round(found["field"] / found["trtops"], 2),
        "device_us": round(timing.compute * 1e6, 1),
        "copy_in_us": timing.copy_in and round(timing.copy_in * 1e6, 1),
        "copy_out_us": timing.copy_out and round(timing.copy_out * 1e6, 1),
    }
    print(json.dumps(row))
    return row


_START = """
import sys, time
started = time.perf_counter()
import numpy as np
from {package}.backend.trt import EngineFromBytes, TrtRunner
from {package}.backend.common import BytesFromPath
with TrtRunner(EngineFromBytes(BytesFromPath(sys.argv[1]))) as runner:
    runner.infer({{"x": np.zeros((1, 3, 256, 256), np.float32)}})
    print("seconds", time.perf_counter() - started)
"""


def start_to_first_inference(rounds=9):
    proto, _ = heavy()
    plan = engine_bytes_from_network(
        NetworkFromOnnxBytes(proto.SerializeToString()), CreateConfig(builder_optimization_level=1)
    )
    times = {"trtops": [], "polygraphy": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heavy.engine"
        path.write_bytes(bytes(plan))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = f"{folder}/pycache"  # both compiled once, as after an installation
        for _ in range(1 + rounds):
            for package, found in times.items():
                command = [sys.executable, "-c", _START.format(package=package), str(path)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=environment)
                [line] = [line for line in done.stdout.splitlines() if line.startswith("seconds ")]
                found.append(float(line.split()[1]))
    medians_ = {name: statistics.median(values[1:]) for name, values in times.items()}
    row = {
        "start_to_first_inference_s": {name: round(value, 3) for name, value in medians_.items()},
        "times_faster_than_field": round(medians_["polygraphy"] / medians_["trtops"], 2),
    }
    print(json.dumps(row))
    return row


def main():
    print(current_gpu().to_json(indent=None))
    small = compare("tiny", tiny, 2000)
    large = compare("about 5 ms", heavy, 200)
    bulk = compare("50 MB of inputs and outputs", bulky, 100)
    start = start_to_first_inference()
    met = {
        "tiny: at most 30 us over the bare loop": small["over_bare_us"] <= 30,
        "5 ms: at most 5 % over the bare loop": large["over_bare_percent"] <= 5,
        "50 MB: at least 2 times faster than the field": bulk["times_faster_than_field"] >= 2,
        "start to first inference: no slower than the field": start["times_faster_than_field"] >= 1,
    }
    for goal, reached in met.items():
        print(f"{'met   ' if reached else 'MISSED'} {goal}")
    sys.exit(0 if all(met.values()) else 1)


if __name__ == "__main__":
    main()
