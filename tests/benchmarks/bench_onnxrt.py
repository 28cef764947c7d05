"""What the ONNX Runtime runner adds to a bare session, compared with Polygraphy; and what a build costs.

Goals: 8 us of CPU time per inference with one input, 60 us with twenty.
"""

import statistics
from collections.abc import Callable

import numpy as np
import onnxruntime as ort
from polygraphy.backend.onnxrt import OnnxrtRunner as TheirRunner

from tests import models
from tests.benchmarks.harness import Goals, benchmark, in_turns
from trtops.backend.base import Caches
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt import OnnxrtRunner
from trtops.spec import BuildConfig, OnnxRuntimeOptions

LIMITS_US = {1: 8.0, 20: 60.0}
CALLS = 400


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
        found = in_turns(calls, 15, pick=statistics.median)
    bare, mine, other = (found[name] / CALLS * 1e6 for name in ("bare", "ours", "theirs"))
    note = f"bare session {bare:.1f} us, Polygraphy adds {other - bare:.1f} us"
    goals.at_most(f"infer, {inputs} inputs, added", mine - bare, LIMITS_US[inputs], "us", note)


def bench_build() -> None:
    """Print what a build of a small transformer costs: timed, with a timing cache, replayed."""
    backend, model = engine_backend("onnxruntime"), Model.from_proto(models.transformer().proto)
    config = BuildConfig(options=OnnxRuntimeOptions(allow_approximation=True))
    first = backend.build(model, config)
    ways = {
        "timed": Caches(),
        "timing cache": Caches(timing=first.timing_cache),
        "replay": Caches(replay=first.tactics),
    }
    found = in_turns({name: lambda c=c: backend.build(model, config, caches=c) for name, c in ways.items()}, 7)
    print("build:", ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in found.items()))


def main() -> None:
    with benchmark() as (goals, _):
        for inputs in LIMITS_US:
            bench_infer(goals, inputs)
        bench_build()


if __name__ == "__main__":
    main()
