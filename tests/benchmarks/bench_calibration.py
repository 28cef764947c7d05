"""Calibration on ONNX Runtime: CPU time, memory and ranges, beside ``onnxruntime.quantization``'s own calibrators.

Both run the same model over the same feeds, each measurement in a process of its own; the peak is what the process grew by
beyond its imports and the model. Run: ``python tests/benchmarks/bench_calibration.py [--feeds 16] [--full]``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx

ALGORITHMS = ("minmax", "entropy", "percentile")
SHAPE = (4, 16, 64, 64)


def model() -> onnx.ModelProto:
    """Eight convolutions of 32 channels on 64 by 64 pixels."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, weights, name, channels = [], [], "x", SHAPE[1]
    for i in range(8):
        weight = rng.standard_normal((32, channels, 3, 3)) * (2 / (9 * channels)) ** 0.5
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{i}"))
        nodes.append(helper.make_node("Conv", [name, f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"))
        name, channels = f"r{i}", 32
    shape = ["n", *SHAPE[1:]]
    graph = helper.make_graph(
        nodes,
        "convs",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 32, *SHAPE[2:]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(count: int):
    for seed in range(count):
        yield {"x": np.random.default_rng(seed).standard_normal(SHAPE, dtype=np.float32)}


def ours(path: Path, algorithm: str, count: int) -> dict[str, float]:
    from trtops.backend.onnxrt.calibration import collect
    from trtops.metadata import TensorMetadata

    inputs = TensorMetadata().add("x", "float32", (None, *SHAPE[1:]))
    cache = collect(onnx.load(path), feeds(count), inputs=inputs, algorithm=algorithm, counted=False).cache
    return {entry.name: entry.amax for entry in cache.ranges}


def theirs(path: Path, algorithm: str, count: int) -> dict[str, float]:
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

    method = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }[algorithm]
    source = feeds(count)
    reader = type("Reader", (), {"get_next": lambda self: next(source, None)})()
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator = create_calibrator(
            path, augmented_model_path=str(path.with_suffix(".augmented.onnx")), calibrate_method=method
        )
        calibrator.collect_data(reader)
        found = calibrator.compute_data()
    return {
        name: max(abs(np.asarray(data.range_value[0]).item()), abs(np.asarray(data.range_value[1]).item()))
        for name, data in found.items()
    }


def measure(tool: str, algorithm: str, count: int) -> None:
    """One calibration; prints CPU seconds, growth of the peak in MiB, and the mean share of min-max that is kept."""
    run = {"ours": ours, "theirs": theirs}[tool]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        onnx.save(model(), path)
        with contextlib.redirect_stdout(io.StringIO()):
            largest = run(path, "minmax", 1)  # imports
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        found = run(path, algorithm, count)
        seconds = time.process_time() - start
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    kept = statistics.mean(found[name] / largest[name] for name in found)
    print(json.dumps({"seconds": seconds, "MiB": grown, "kept": kept}))


def main() -> None:
    """Print a line per algorithm, with ratios ours / theirs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--feeds", type=int, default=16)
    parser.add_argument("--full", action="store_true", help="each calibration five times, not twice")
    parser.add_argument("--measure", nargs=2)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(*arguments.measure, arguments.feeds)
        return
    repeat = 5 if arguments.full else 2
    print(f"{arguments.feeds} feeds of {SHAPE}, 17 tensors; the least of {repeat}")
    print(
        f"{'':12}{'CPU s ours':>12}{'theirs':>9}{'ratio':>7}{'MiB ours':>11}{'theirs':>9}{'range/largest ours':>20}{'theirs':>8}"
    )
    for algorithm in ALGORITHMS:
        sides = {}
        for tool in ("ours", "theirs"):
            command = [sys.executable, __file__, "--feeds", str(arguments.feeds), "--measure", tool, algorithm]
            done = [
                json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
                for _ in range(repeat)
            ]
            sides[tool] = {key: min(each[key] for each in done) for key in done[0]}
        a, b = sides["ours"], sides["theirs"]
        print(
            f"{algorithm:12}{a['seconds']:12.2f}{b['seconds']:9.2f}{a['seconds'] / b['seconds']:7.2f}"
            f"{a['MiB']:11.0f}{b['MiB']:9.0f}{a['kept']:20.2f}{b['kept']:8.2f}"
        )


if __name__ == "__main__":
    main()
