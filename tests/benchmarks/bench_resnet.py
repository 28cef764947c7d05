"""CPU time of converting a ResNet-50: at most ten starts and 130 inferences of a plain session, and a minute.

The search's budget is five starts and 60 inferences; the rest is the reference, the latency's 55 inferences and the
engine itself.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime as ort

from tests.benchmarks.harness import Goals, timed
from tests.benchmarks.networks import write_resnet50
from trtops import BuildConfig, ConvertConfig, MemoryTracker, convert


def cost_of_inference(session: ort.InferenceSession) -> float:
    feed = {"image": np.random.default_rng(0).random((1, 3, 224, 224), np.float32)}
    session.run(None, feed)
    return timed(lambda: [session.run(None, feed) for _ in range(10)])[0] / 10


def main() -> None:
    goals = Goals()
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as folder:
        path = write_resnet50(Path(folder, "resnet50.onnx"))
        start, session = timed(lambda: ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]))
        before = cost_of_inference(session)
        # FP16 and INT8 build in a child that lives on, whose time does not show here.
        config = ConvertConfig(build=BuildConfig(precision="fp32"))
        seconds, result = timed(lambda: convert(path, config, tracker=MemoryTracker()))
        inference = (before + cost_of_inference(session)) / 2  # a machine is not always equally fast
    note = f"{result.verdict}; a start takes {start:.2f} s, an inference {inference:.3f} s"
    goals.at_most("convert ResNet-50", seconds, min(10 * start + 130 * inference, 60.0), note=note)
    goals.exit()


if __name__ == "__main__":
    main()
