"""Calibration on ONNX Runtime: CPU time, memory and ranges, compared with ``onnxruntime.quantization``'s calibrators.

Prints a table, without goals. Both run the same model over 16 feeds, each in a process of its own.
"""

from __future__ import annotations

import onnx

from tests.benchmarks.harness import benchmark, full_size, measured_child
from tests.benchmarks.networks import Graph

SHAPE = (4, 16, 64, 64)
FEEDS = f"""
import contextlib, io, statistics
import numpy as np, onnx
path, algorithm = sys.argv[1:]
def feeds(count):
    for seed in range(count):
        yield {{"x": np.random.default_rng(seed).standard_normal({SHAPE}, dtype=np.float32)}}
"""
OURS = """
from trtops.backend.onnxrt.calibration import collect
from trtops.metadata import TensorMetadata
def ranges(algorithm, count):
    inputs = TensorMetadata().add("x", "float32", (None, 16, 64, 64))
    found = collect(onnx.load(path), feeds(count), inputs=inputs, algorithm=algorithm, counted=False)
    return {entry.name: entry.amax for entry in found.cache.ranges}
"""
THEIRS = """
from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator
METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
def ranges(algorithm, count):
    source = feeds(count)
    reader = type("Reader", (), {"get_next": lambda self: next(source, None)})()
    method = CalibrationMethod[METHODS[algorithm]]
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator = create_calibrator(path, augmented_model_path=path + ".augmented.onnx", calibrate_method=method)
        calibrator.collect_data(reader)
        found = calibrator.compute_data()
    return {n: max(abs(np.asarray(end).item()) for end in data.range_value) for n, data in found.items()}
"""
SHARE = """
found = ranges(algorithm, 16)
largest = ranges("minmax", 1)
value = statistics.mean(found[name] / largest[name] for name in found)
"""


def convolutions() -> onnx.ModelProto:
    """Eight convolutions of 32 channels on 64 by 64 pixels."""
    graph, name, channels = Graph(), "x", SHAPE[1]
    for _ in range(8):
        name, channels = graph.op("Relu", graph.conv(name, channels, 32, 3)), 32
    return graph.model({"x": ("n", *SHAPE[1:])}, name)


def main() -> None:
    repeats = 5 if full_size(__doc__, "each calibration five times instead of twice") else 2
    print(
        f"{'':12}{'CPU s':>8}{'theirs':>8}{'ratio':>7}{'peak MiB':>10}{'theirs':>8}{'range/largest':>15}{'theirs':>8}"
    )
    with benchmark() as (_, folder):
        path = str(folder / "model.onnx")
        onnx.save(convolutions(), path)
        for algorithm in ("minmax", "entropy", "percentile"):
            ours, theirs = (
                min(
                    (measured_child(folder, FEEDS + side + SHARE, path, algorithm) for _ in range(repeats)),
                    key=lambda found: float(found["seconds"]),
                )
                for side in (OURS, THEIRS)
            )
            ratio = ours["seconds"] / theirs["seconds"]
            print(
                f"{algorithm:12}{ours['seconds']:8.2f}{theirs['seconds']:8.2f}{ratio:7.2f}"
                f"{ours['peak']:10.0f}{theirs['peak']:8.0f}{ours['value']:15.2f}{theirs['value']:8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
