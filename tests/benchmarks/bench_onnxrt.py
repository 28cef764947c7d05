"""What the ONNX Runtime runner adds to a bare session, and what calibration costs next to ONNX Runtime's.

Goals: 8 us of CPU time per inference with one input, 60 us with twenty; 1.5 times the CPU time of static calibration by
``onnxruntime.quantization`` on the same data, and no more memory for more samples.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from polygraphy.backend.onnxrt import OnnxrtRunner as TheirRunner

from tests import models
from tests.benchmarks.harness import Goals, benchmark, in_turns, measured_child
from tests.benchmarks.networks import densenet
from trtops.backend.onnxrt import OnnxrtRunner

LIMITS_US = {1: 8.0, 20: 60.0}
CALLS = 400
CALIBRATE = """
import numpy as np
feeds = ({"x": np.random.default_rng(i).random((1, 3, 224, 224), np.float32)} for i in range(int(sys.argv[4])))
"""
OURS = """
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.calibration import collect
from trtops.metadata import TensorMetadata
model = Model.load(sys.argv[1])
collected = collect(model.proto(), feeds, inputs=TensorMetadata.of(model.info.inputs), counted=sys.argv[2] != "minmax")
collected.cache(sys.argv[2])
"""
THEIRS = """
from onnxruntime.quantization import calibrate
kind = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}[sys.argv[2]]
method = getattr(calibrate.CalibrationMethod, kind)
found = calibrate.create_calibrator(sys.argv[1], augmented_model_path=sys.argv[3], calibrate_method=method)
found.collect_data(type("Reader", (calibrate.CalibrationDataReader,), {"get_next": lambda self: next(feeds, None)})())
found.compute_data()
"""


def identities(count: int) -> bytes:
    """A model that passes ``count`` inputs through."""
    inputs, outputs = (", ".join(f"float[batch,4] {letter}{i}" for i in range(count)) for letter in "xy")
    nodes = " ".join(f"y{i} = Identity(x{i})" for i in range(count))
    return models.model(f"({inputs}) => ({outputs}) {{ {nodes} }}").SerializeToString()


def repeated(call: Callable[[], object]) -> Callable[[], None]:
    def calls() -> None:
        for _ in range(CALLS):
            call()

    return calls


def bench_infer(goals: Goals, inputs: int) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(identities(inputs), options)
    feed = {f"x{i}": np.zeros((1, 4), np.float32) for i in range(inputs)}
    with OnnxrtRunner(session) as ours, TheirRunner(session) as theirs:
        calls = {
            "bare": repeated(lambda: session.run(None, feed)),
            "ours": repeated(lambda: ours.infer(feed)),
            "theirs": repeated(lambda: theirs.infer(feed)),
        }
        seconds = in_turns(calls, 15, pick=statistics.median)
    bare, mine, other = (seconds[name] / CALLS * 1e6 for name in ("bare", "ours", "theirs"))
    note = f"bare session {bare:.1f} us, Polygraphy adds {other - bare:.1f} us"
    goals.at_most(f"infer, {inputs} inputs, added", mine - bare, LIMITS_US[inputs], "us", note)


def bench_calibrate(goals: Goals, folder: Path) -> None:
    path, augmented = str(folder / "model.onnx"), str(folder / "augmented.onnx")
    onnx.save(densenet(), path)
    for method in ("minmax", "percentile", "entropy"):
        ours, theirs = (
            measured_child(folder, CALIBRATE + code, path, method, augmented, "4") for code in (OURS, THEIRS)
        )
        note = f"{ours['seconds']:.1f} s and {ours['peak']:.0f} MiB, theirs {theirs['seconds']:.1f} s and "
        note += f"{theirs['peak']:.0f} MiB"
        goals.at_most(f"calibrate by {method}", ours["seconds"] / theirs["seconds"], 1.5, "times", note)
    tripled = measured_child(folder, CALIBRATE + OURS, path, "entropy", augmented, "12")
    goals.at_most("memory of three times the samples", tripled["peak"] / ours["peak"], 1.05, "times")


def main() -> None:
    with benchmark() as (goals, folder):
        bench_calibrate(goals, folder)
        for inputs in LIMITS_US:
            bench_infer(goals, inputs)


if __name__ == "__main__":
    main()
