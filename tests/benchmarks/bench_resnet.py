"""What converting a ResNet-50 costs beside starting it and running it: the builder's search has a budget.

Measures CPU time, which is what a busy machine takes as much of as an idle one: a plain session's start, an inference, and
the convert op with default options in each precision. Goal: FP32 costs no more than ten starts and 130 inferences (five and
60 are the search's; the rest is the reference, the latency's 55 inferences and the engine itself), and a minute at most.

Run: ``python tests/benchmarks/bench_resnet.py [--precision fp32 --precision fp16]``.
"""

from __future__ import annotations

import argparse
import functools
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.resnet import write_resnet50
from trtops import BuildConfig, ConvertConfig, MemoryTracker, convert

STARTS, INFERENCES, MOST_SECONDS = 10, 130, 60.0


def cpu_seconds() -> float:
    """Of this process and its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def cost(call: Callable[[], object]) -> tuple[float, object]:
    before = cpu_seconds()
    made = call()
    return cpu_seconds() - before, made


def cost_of_inference(session: ort.InferenceSession) -> float:
    """Of one out of ten, after one that does not count."""
    feed = {"image": np.random.default_rng(0).random((1, 3, 224, 224), np.float32)}
    session.run(None, feed)
    return cost(lambda: [session.run(None, feed) for _ in range(10)])[0] / 10


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", action="append", choices=("fp32", "fp16", "int8"))
    precisions = parser.parse_args().precision or ["fp32"]
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as folder:
        path = write_resnet50(Path(folder, "resnet50.onnx"))
        start, session = cost(lambda: ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]))
        before = cost_of_inference(session)
        kept = True
        for precision in precisions:
            config = ConvertConfig(build=BuildConfig(precision=precision))
            began = time.perf_counter()
            seconds, result = cost(functools.partial(convert, path, config, tracker=MemoryTracker()))
            wall = time.perf_counter() - began
            skipped = f", not tried: {', '.join(result.skipped)}" if result.skipped else ""
            print(f"convert {precision}: {seconds:.2f} s of CPU time ({wall:.1f} s), {result.verdict}{skipped}")
            if precision == "fp32":  # below, the build runs in a child that lives on, whose time does not show here
                inference = (before + cost_of_inference(session)) / 2  # a machine is not always equally fast
                print(f"a plain session starts in {start:.2f} s of CPU time, an inference takes {inference:.3f} s")
                allowed = min(STARTS * start + INFERENCES * inference, MOST_SECONDS)
                kept = seconds <= allowed
                print(f"{'goal kept' if kept else 'GOAL MISSED'}: at most {allowed:.2f} s in FP32")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
