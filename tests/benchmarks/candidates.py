"""Twenty regressions, from 3 % slower and 0.1 % less accurate upwards, and twenty unchanged candidates of the gate.

None may be decided wrongly, or after its budget: ``python -m tests.benchmarks.candidates [MINUTES]``, which takes four
minutes in all on a quiet machine.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from tests import models
from tests.benchmarks.harness import benchmark, timed
from tests.gates import (
    ZOO,
    built,
    convolutions,
    kept,
    with_further_axis,
    with_further_nodes,
    with_wrong_weight,
    write,
)
from trtops.ops.gate.op import gate
from trtops.ops.gate.policy import AccuracyLimit, GateConfig, LatencyLimit, Limits, Policy
from trtops.ops.gate.result import GateResult
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking import builds
from trtops.tracking.memory import MemoryTracker

UNTIMED = Policy(limits=Limits(latency=None))
DEFAULT = BuildConfig(options=OnnxRuntimeOptions(tactics=(), intra_op_threads=1))


def candidates(folder: Path, minutes: float) -> Iterator[tuple[str, Callable[[], GateResult], str]]:
    """A title, the call of the gate, and the right decision of each candidate."""
    tracker = MemoryTracker()
    usual = GateConfig(build=DEFAULT, policy=UNTIMED, register=False, keep_model=False, minutes=minutes)
    tight = replace(usual, policy=Policy(limits=Limits(latency=LatencyLimit(ratio=1.015), size=None)))

    def run(path: Path, config: GateConfig) -> Callable[[], GateResult]:
        return lambda: gate(path, config, tracker=tracker)

    # Scores of 1,000 samples, whose classes are the labels.
    weights = models.random(16, 10, seed=1)
    data, labels = folder / "data.npz", folder / "labels.npy"
    samples = models.random(1000, 16, seed=2)
    scores = samples @ weights
    np.savez(data, x=samples)
    np.save(labels, scores.argmax(1))
    check = replace(GateConfig().check, data=str(data), labels=str(labels))
    accuracy = AccuracyLimit(widths=None, top1_drop=0.0005)
    labelled = replace(usual, check=check, policy=Policy(limits=Limits(latency=None, accuracy=accuracy)))
    text = "(float[1000,16] x) => (float[1000,10] y) { s = MatMul(x, w) y = Add(s, b) }"
    margins = np.sort(np.sort(scores)[:, -1] - scores[:, 0])  # what a bias must exceed for class 0 to win
    margins = margins[margins > 0]
    for wrong in (0, 0, 0, 1, 2, 3, 5, 10):
        bias = np.zeros(10, np.float32)
        bias[0] = (margins[wrong - 1] + margins[wrong]) / 2 if wrong else 0
        path = write(models.model(text, {"w": weights, "b": bias}, name="labelled"), folder / str(wrong), "labelled")
        if not tracker.aliases("labelled"):
            gate(path, replace(labelled, register=True), tracker=tracker)
        yield f"{wrong / 1000:.1%} less accurate", run(path, labelled), "refuse" if wrong else "accept"
    for name, make in ZOO.items():
        path = write(make(), folder, name)
        gate(path, replace(usual, register=True), tracker=tracker)
        yield f"unchanged {name}", run(path, usual), "accept"
        if name in ("ten_outputs", "perceptron", "deep"):
            changed = write(with_wrong_weight(make()), folder / "wrong", name)
            yield f"wrong weight in {name}", run(changed, usual), "refuse"
    for name in ("convolutions", "perceptron"):
        changed = write(with_further_axis(ZOO[name]()), folder / "shape", name)
        yield f"further axis in {name}", run(changed, usual), "refuse"
    yield "accepted perceptron", run(folder / "perceptron.onnx", usual), "accept"
    for number, size in enumerate((24, 32)):
        proto = convolutions(16 + 8 * number, size)
        path = write(proto, folder, f"timed_{size}")
        holder = gate(path, replace(usual, register=True), tracker=tracker).holder
        honest = builds.load_build(tracker.load(holder)).engine
        # How many further nodes make it how much slower, by the fastest of many inferences.
        nodes = 200
        plain, longer = (_fastest(candidate) for candidate in (proto, with_further_nodes(proto, nodes)))
        for share in (0.03, 0.05, 0.08, 0.15, 0.3):
            count = 2 * max(1, round(share * plain / (longer - plain) * nodes / 2))
            slow = built(write(with_further_nodes(proto, count), folder / f"slow_{count}", path.stem), DEFAULT)
            planted = replace(slow, spec=built(path, DEFAULT).spec)
            title = f"{(longer - plain) / nodes * count / plain:.1%} slower, {path.stem}"
            yield title, run(path, replace(tight, candidate=kept(tracker, path, planted))), "refuse"
        for note in range(4):  # the same work in a file of its own
            engine = replace(honest, options={**honest.options, "note": note})
            same = kept(tracker, path, replace(built(path, DEFAULT), engine=engine))
            yield f"unchanged, {path.stem}", run(path, replace(tight, candidate=same)), "accept"
        yield f"accepted file, {path.stem}", run(path, replace(tight, candidate=holder)), "accept"


def _fastest(proto: onnx.ModelProto) -> float:
    """Seconds of the fastest of 600 inferences, on random inputs."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(proto.SerializeToString(), options)
    feed = {model_input.name: models.random(*model_input.shape, seed=0) for model_input in session.get_inputs()}
    return min(timed(lambda: session.run(None, feed), time.perf_counter)[0] for _ in range(600))


def main() -> None:
    minutes = float(sys.argv[1]) if sys.argv[1:] else 5.0
    with benchmark() as (goals, folder):
        os.environ.setdefault("TRTOPS_HOME", str(folder))
        decisions: Counter[str] = Counter()
        late = wrong = 0
        for title, call, expected in candidates(folder, minutes):
            begin = time.monotonic()
            result = call()
            seconds = time.monotonic() - begin
            decisions[f"{expected}: {result.decision}"] += 1
            wrong += result.decision not in (expected, "undecided")
            late += seconds > 60 * minutes
            lines = [finding.line for finding in result.findings if finding.subject == "latency"]
            print(f"{title:34} {result.decision:9} {seconds:6.1f} s  {''.join(lines)}", flush=True)
        goals.at_most("candidates decided wrongly", wrong, 0, "", str(dict(decisions)))
        goals.at_most("gates that exceed their budget", late, 0, "")


if __name__ == "__main__":
    main()
