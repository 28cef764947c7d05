"""Measures the time of each layer of an engine with TensorRT's profiler."""

import math
from collections.abc import Mapping
from typing import Any

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.trt import library
from trtops.backend.trt.infer.runner import TrtRunner


def layer_times(engine: Any, feed: Feed, *, runs: int = 20, warm_up: int = 5) -> Mapping[str, float]:
    """Mean time of each layer, in milliseconds; times of layers with the same name are added.

    The sum is longer than an inference: TensorRT synchronizes after each layer while profiling.

    Raises InferenceError if TensorRT reports no layer.
    """
    trt = library.load()
    base: Any = trt.IProfiler

    class Times(base):  # type: ignore[misc]
        """Called from C++, once for each layer of each inference."""

        def __init__(self) -> None:
            base.__init__(self)
            self.ms: dict[str, list[float]] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.ms.setdefault(layer_name, []).append(ms)

    with TrtRunner(engine) as runner:
        times = Times()
        runner.context.profiler = times
        for number in range(warm_up + runs):
            # The first runs include the loading of kernels and low clocks.
            if number == warm_up:
                times.ms.clear()
            runner.infer(feed)
    if not times.ms:
        raise errors.InferenceError("TensorRT's profiler reported no layer. Expected at least one.")
    return {name: math.fsum(times_ms) / runs for name, times_ms in times.ms.items()}
