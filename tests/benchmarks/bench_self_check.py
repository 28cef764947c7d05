"""What a self-check costs, as a multiple of one comparison: the model's inferences on the feeds and the engine's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx

from tests import gates, models
from tests.benchmarks.harness import Goals, benchmark, in_turns
from trtops.backend.base import BuildRequest
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.runner import reference_runner
from trtops.backend.runner import BaseRunner, Feed
from trtops.ops.evaluation.data import collect
from trtops.ops.evaluation.self_check import accepts_nan, self_check
from trtops.spec import BuildConfig, OnnxRuntimeOptions

NETWORKS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[int, ...]]] = {
    "convolutions": (lambda: models.three_convolutions(1, 32, 48, 0.1, "convolutions").proto, (32, 48, 48)),
    "classifier": (lambda: gates.convolutions(24, 48, 5), (3, 48, 48)),
    "transformer": (lambda: models.transformer().proto, (512, 16)),
}
# Feeds, and rows of each: the default data, saved samples, one sample, and a batch. Networks take milliseconds, since a
# check itself takes about one.
DATA = ((2, 2), (2, 1), (1, 1), (8, 1), (1, 8))


def measure(goals: Goals, title: str, model: Model, shape: tuple[int, ...]) -> None:
    build = BuildConfig(options=OnnxRuntimeOptions(tactics=(), intra_op_threads=1))
    backend = engine_backend("onnxruntime")
    [source] = model.info.inputs
    built = backend.build(BuildRequest(model, build))
    with backend.runner(built.engine) as runner, reference_runner(model) as reference:
        for number, batch in DATA:
            random = np.random.default_rng(1)
            feeds = [{source.name: random.normal(size=(batch, *shape)).astype(np.float32)} for _ in range(number)]
            calls = {
                "comparison": partial(compare, runner, reference, feeds),
                "self-check": partial(
                    check, runner, reference, feeds, collect(runner, feeds)[0][1], accepts_nan(model)
                ),
            }
            seconds = in_turns(calls, 15)
            note = f"{seconds['self-check'] * 1e3:.2f} ms, comparison {seconds['comparison'] * 1e3:.2f} ms"
            ratio = seconds["self-check"] / seconds["comparison"]
            goals.at_most(f"{title}, {number} feeds of {batch}", ratio, 3, "times", note)


def compare(runner: BaseRunner, reference: BaseRunner, feeds: list[Feed]) -> None:
    collect(reference, feeds)
    collect(runner, feeds)


def check(runner: BaseRunner, reference: BaseRunner, feeds: list[Feed], outputs: list[Any], nan: bool) -> None:
    outcome = self_check(runner, feeds, reference, outputs=outputs, nan=nan)
    assert not outcome.reasons, outcome.reasons


def main() -> None:
    with benchmark() as (goals, _):
        for title, (make, shape) in NETWORKS.items():
            proto = make()
            for value in (*proto.graph.input, *proto.graph.output):
                value.type.tensor_type.shape.dim[0].dim_param = "batch"
            measure(goals, title, Model.from_proto(proto), shape)


if __name__ == "__main__":
    main()
