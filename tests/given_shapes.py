"""A small model with dynamic inputs, and the shapes that it was run at and evaluated at."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from onnxruntime.capi.onnxruntime_inference_collection import Session

from tests import models
from trtops.backend.onnx import lint
from trtops.backend.runner import BaseRunner
from trtops.calibration import CalibrationCache
from trtops.calibration.cache import TensorRange
from trtops.json import save_json
from trtops.system.worker import Worker
from trtops.tracking.base import Tracker

Shape = tuple[int, ...]
GIVEN: set[Shape] = {(3, 5, 4)}
OF_DATA: set[Shape] = {(4, 5, 4)}
OF_PROFILE: set[Shape] = {(1, 5, 4), (3, 5, 4), (4, 5, 4), (6, 5, 4)}  # min, opt, between, max
PROFILE = {"name": "x", "min": (1, 5, 4), "opt": (3, 5, 4), "max": (6, 5, 4)}


def write_net(folder: Path) -> Path:
    """A model whose batch and length are dynamic, one feed, and a calibration cache."""
    nodes = "[m] m = MatMul(x, w) [r] r = Relu(m) [y] y = Add(r, x)"
    text = f"(float[batch,length,4] x) => (float[batch,length,4] y) {{ {nodes} }}"
    case = models.Case(models.model(text, {"w": models.random(4, 4)}), {"x": models.random(4, 5, 4)}, name="net")
    ranges = tuple(TensorRange(name=name, amax=4.0) for name in ("x", "m", "r", "y"))
    (folder / "int8.json").write_text(CalibrationCache(algorithm="minmax", ranges=ranges).to_json())
    save_json([dict(case.feed)], str(folder / "data.json"), "inputs")
    return case.write(folder)


@contextmanager
def seen_shapes() -> Iterator[list[Shape]]:
    """The shapes of the input at every inference of this process, for the time of a block."""
    shapes: list[Shape] = []
    infer, run, run_in_child = BaseRunner.infer, Session.run, Worker.run

    def recorded(self: BaseRunner, feed_dict: Any, check_inputs: bool = True) -> dict[str, Any]:
        if "x" in feed_dict:
            shapes.append(tuple(np.shape(feed_dict["x"])))
        return infer(self, feed_dict, check_inputs)

    def recorded_run(self: Session, names: Any, feed: Any, *rest: Any) -> Any:  # what runs without a runner
        if "x" in feed:
            shapes.append(tuple(np.shape(feed["x"])))
        return run(self, names, feed, *rest)

    def run_here(self: Worker, function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.__module__ == lint.__name__:  # lint's child
            return function(*args)
        return run_in_child(self, function, *args, **kwargs)

    with (
        patch.object(BaseRunner, "infer", recorded),
        patch.object(Session, "run", recorded_run),
        patch.object(Worker, "run", run_here),
    ):
        yield shapes


def evaluated(tracker: Tracker) -> list[set[Shape]]:
    """The shapes in the evidence of each run, the newest first; it has those of child processes too."""
    params = [run.params.get("evidence.shapes") for run in tracker.find()]
    words = [[text.split(" (")[0].removeprefix("x ") for text in shapes.split("; ")] for shapes in params if shapes]
    return [{tuple(map(int, word.split("x"))) for word in shape_words} for shape_words in words]
