"""What the convert flow costs outside building and inference, with the store and Prefect's embedded server up already.

Goals in CPU time: the flow takes 0.3 s more than its op, ``import trtops`` 0.1 s. The op's own share (reading the
model, digests, logging) is printed. A ResNet-50 takes at most ten starts and 130 inferences of a plain session, and a
minute: the search's budget is five starts and 60 inferences, the rest is the reference, the latency's 55 inferences and
the engine itself.
"""

import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")

import numpy as np
import onnxruntime as ort

from tests.benchmarks.harness import Goals, benchmark, run_quietly, timed
from tests.benchmarks.networks import write_resnet50

IMPORT = "import time; begin = time.process_time(); import trtops; print(time.process_time() - begin)"


def timing(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The function, which adds the CPU time of each call to a list."""

    @functools.wraps(function)
    def timed_function(*args: Any, **kwargs: Any) -> Any:
        seconds, result = timed(lambda: function(*args, **kwargs), time.process_time)
        spent.append(seconds)
        return result

    return timed_function


def cost_of_inference(session: ort.InferenceSession) -> float:
    feed = {"image": np.random.default_rng(0).random((1, 3, 224, 224), np.float32)}
    session.run(None, feed)
    return timed(lambda: [session.run(None, feed) for _ in range(10)])[0] / 10


def run_plain(path: Path, options: ort.SessionOptions) -> None:
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for _ in range(2):
        session.run(None, {"image": np.zeros((1, 3, 224, 224), np.float32)})


def bench_resnet50(goals: Goals, folder: Path) -> None:
    from trtops import BuildConfig, ConvertConfig, MemoryTracker, convert
    from trtops.backend.base import BuildRequest
    from trtops.backend.engines import engine_backend
    from trtops.backend.onnx.model import Model
    from trtops.system.activity import Page

    Page().publish_here()  # as in the command's own process, whose native code needs no child to run in first
    path = write_resnet50(folder / "resnet50.onnx")
    start, session = timed(lambda: ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]))
    before = cost_of_inference(session)
    # FP16 and INT8 build in a child that lives on, whose time does not show here.
    config = ConvertConfig(build=BuildConfig(precision="fp32"))
    seconds, result = timed(lambda: convert(path, config, tracker=MemoryTracker()))
    tuned, _ = timed(lambda: engine_backend("onnxruntime").build(BuildRequest(Model.load(path), config.build)))
    inference = (before + cost_of_inference(session)) / 2  # a machine is not always equally fast
    # The evaluation runs the model and the moved one without optimization, and the engine on each of two feeds and for
    # its latency.
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    twice = [timed(lambda: run_plain(path, plain))[0] for _ in range(2)]
    assert result.evaluation.latency is not None
    floor = sum(twice) + start + (result.evaluation.latency.runs + 4) * inference
    note = f"{result.verdict}; a start takes {start:.2f} s, an inference {inference:.3f} s"
    goals.at_most("convert ResNet-50", seconds, min(10 * start + 130 * inference, 60.0), note=note)
    note = f"which takes {tuned:.1f} s; bare sessions take {floor:.1f} s for the rest"
    goals.at_most("convert ResNet-50 beyond a tuned session", seconds - tuned, 3.0, note=note)


def main() -> None:
    beyond_op, beyond_work, imports = [], [], []
    with benchmark() as (goals, folder):
        os.environ["TRTOPS_HOME"] = str(folder)
        import trtops.ops.engines.convert as convert_ops
        from examples.digits import make_digits
        from trtops.backend.engines import engine_backend
        from trtops.flows.flow_of import flow_of
        from trtops.ops.evaluation.check import CheckConfig

        digits = make_digits(folder / "demo")
        check = CheckConfig(data=str(digits.images), labels=str(digits.labels))
        config = convert_ops.ConvertConfig(check=check, rebuild=True)
        flow_of(convert_ops.convert, by_steps=True)(digits.model, config)  # starts the servers
        backend = type(engine_backend("onnxruntime"))
        for _ in range(5):
            op: list[float] = []
            work: list[float] = []
            flow = flow_of(timing(convert_ops.convert, op), by_steps=True)
            with (
                mock.patch.object(convert_ops, "evaluate_build", timing(convert_ops.evaluate_build, work)),
                mock.patch.object(backend, "build", timing(backend.build, work)),
            ):
                whole, _ = timed(lambda: flow(digits.model, config), time.process_time)  # noqa: B023
            beyond_op.append(whole - sum(op))
            beyond_work.append(sum(op) - sum(work))
            imports.append(float(run_quietly([sys.executable, "-c", IMPORT], folder)))
        print(f"op beyond building and evaluating: {min(beyond_work):.3f} s")
        goals.at_most("flow beyond its op", min(beyond_op), 0.3)
        goals.at_most("import trtops", min(imports), 0.1)
        bench_resnet50(goals, folder)


if __name__ == "__main__":
    main()
