"""ONNX Runtime: what our runner adds to a bare session, and calibration and INT8 engines next to ONNX Runtime's own.

Goals: 8 us of CPU time per inference with one input, 60 us with twenty; 1.5 times the CPU time of static calibration by
``onnxruntime.quantization`` on the same data, and no more memory for more samples. INT8 engines of four networks, next
to the fastest of its models: 1.05 times the latency, 1.1 times the size as an engine file; 1.05 times the least error.
"""

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime import quantization
from onnxruntime.quantization import shape_inference
from polygraphy.backend.onnxrt import OnnxrtRunner as TheirRunner

from examples.digits import make_digits
from tests import models
from tests.benchmarks.harness import Goals, benchmark, in_turns, measured_child
from tests.benchmarks.networks import densenet, exported_transformer, perceptron, small_resnet
from trtops.backend.base import BuildRequest, Feed
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt import OnnxrtRunner
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.engine import open_plan
from trtops.backend.ratio import UNDISTURBED, RatioEstimate, estimate
from trtops.spec import BuildConfig, OnnxRuntimeOptions

LIMITS_US = {1: 8.0, 20: 60.0}
CALLS = 400
SESSIONS, RUNS_PER_SESSION = 20, 50
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


class Reader(quantization.CalibrationDataReader):
    """Feeds for ``onnxruntime.quantization``."""

    def __init__(self, feeds: list[Feed]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> object:
        return next(self.feeds, None)


def int8_networks(folder: Path) -> Iterator[tuple[str, onnx.ModelProto, list[Feed], list[Feed]]]:
    """Name, model, calibration feeds and further feeds of each network."""
    digits, random = make_digits(folder / "digits"), np.random.default_rng(1)
    images = np.load(digits.calibration)["image"]
    held_out = [{"image": image[None]} for image in np.load(digits.images)["image"][:64]]
    yield "digits", onnx.load(digits.model), [{"image": images[i : i + 16]} for i in range(0, 64, 16)], held_out
    for name, model, shape in (
        ("perceptron", perceptron(), (32, 256)),
        ("attention", exported_transformer(130, width=128), (4, 64, 128)),
        ("residual", small_resnet(), (4, 3, 32, 32)),
    ):
        feeds = [{model.graph.input[0].name: random.standard_normal(shape, np.float32)} for _ in range(8)]
        yield name, model, feeds[:4], feeds[4:]


def their_session(path: str, optimized: str = "") -> ort.InferenceSession:
    """A session of ONNX Runtime with one thread; ``optimized`` is the file that it writes its optimized model to."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.optimized_model_filepath = optimized
    return ort.InferenceSession(path, options)


def latency_ratios(openers: Mapping[str, Callable[[], ort.InferenceSession]], feed: Feed) -> dict[str, RatioEstimate]:
    """The latency of ``ours`` as a ratio to that of each other engine, over sessions opened in random order.

    Sessions of one engine differ by up to 5 % for as long as they live, by where their memory lies.
    """
    logarithms: dict[str, list[tuple[float]]] = {label: [] for label in openers}
    shuffled, undisturbed = random.Random(0), partial(np.quantile, q=UNDISTURBED)
    for _ in range(SESSIONS):
        sessions = {label: openers[label]() for label in shuffled.sample(list(openers), len(openers))}
        calls = {label: partial(session.run, None, feed) for label, session in sessions.items()}
        seconds = in_turns(calls, RUNS_PER_SESSION, clock=time.perf_counter, pick=undisturbed)
        for label in openers:
            logarithms[label].append((math.log(seconds["ours"] / seconds[label]),))
    return {label: estimate(tuple(values), 1.05, 0.95, last=True) for label, values in logarithms.items()}


def bench_int8(goals: Goals, folder: Path) -> None:
    single = OnnxRuntimeOptions(intra_op_threads=1)
    for name, model, calibration, feeds in int8_networks(folder):
        backend, loaded = OnnxRuntimeBackend(), Model.from_proto(model)
        request = BuildRequest(
            loaded,
            BuildConfig(precision="int8", options=single),
            calibration_data=calibration,
            timing_feed=feeds[0],
        )
        plan = backend.build(request).engine.plan
        source, sizes = str(folder / f"{name}.onnx"), {"ours": len(plan)}
        onnx.save(model, source)
        openers = {"fp32": partial(their_session, source), "ours": partial(open_plan, plan, single)}
        shape_inference.quant_pre_process(source, f"{source}.shapes", skip_symbolic_shape=True)
        for per_channel, style in itertools.product((False, True), quantization.QuantFormat):
            label = f"{style.name}{' per channel' if per_channel else ''}"
            target, optimized = str(folder / f"{name} {label}.onnx"), folder / f"{name}.ort"
            quantization.quantize_static(
                f"{source}.shapes",
                target,
                Reader(calibration),
                quant_format=style,
                per_channel=per_channel,
                activation_type=quantization.QuantType.QUInt8,
            )
            their_session(target, str(optimized))
            sizes[label], openers[label] = optimized.stat().st_size, partial(their_session, target)
        outputs = {label: [opener().run(None, feed)[0] for feed in feeds] for label, opener in openers.items()}
        ratios = latency_ratios(openers, feeds[0])
        theirs = [label for label in sizes if label != "ours"]
        best = max(theirs, key=lambda label: ratios[label].ratio)
        of_best, of_fp32 = ratios[best], ratios["fp32"].ratio
        note = f"{of_best.low:.2f} to {of_best.high:.2f}; of FP32: {of_fp32:.2f}, "
        note += f"theirs {of_fp32 / of_best.ratio:.2f} ({best})"
        goals.at_most(f"INT8 {name}, latency", of_best.ratio, 1.05, "times", note)
        goals.at_most(f"INT8 {name}, engine file", sizes["ours"] / sizes[best], 1.1, "times")
        golden = np.stack(outputs["fp32"])
        error = {label: float(np.linalg.norm(np.stack(outputs[label]) - golden)) for label in sizes}
        scale = float(np.linalg.norm(golden))
        # Which of theirs is the fastest may change from run to run; their errors do not.
        least = min(error[label] for label in theirs) / scale
        goals.at_most(f"INT8 {name}, error", error["ours"] / scale, 1.05 * least, "")


def main() -> None:
    with benchmark() as (goals, folder):
        bench_int8(goals, folder)
        bench_calibrate(goals, folder)
        for inputs in LIMITS_US:
            bench_infer(goals, inputs)


if __name__ == "__main__":
    main()
