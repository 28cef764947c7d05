"""What the gate accepts, what it refuses, and what it costs, on engines of ONNX Runtime.

* ``cost``: the gate's own time compared with its builds.
* ``candidates``: twenty regressions and twenty unchanged candidates; none may be decided wrongly, or after its budget.
* ``simulated``: the same for latencies on simulated machines: quiet, loaded, with drift, and with bursts.
* ``planted``: twenty regressions; each must be refused for its own reason.
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx

from tests import models
from tests.benchmarks.harness import Goals, benchmark, timed
from tests.gates import (
    ZOO,
    Machine,
    SimulatedEngine,
    built,
    claiming,
    convolutions,
    kept,
    slow_build,
    ten_outputs,
    with_ballast,
    with_further_axis,
    with_further_nodes,
    with_offset,
    with_wrong_weight,
    write,
)
from trtops.comparator.report import Tolerances
from trtops.ops.gate import engine_process
from trtops.ops.gate.engine_process import measure_rounds
from trtops.ops.gate.op import GateConfig, gate
from trtops.ops.gate.policy import AccuracyLimit, LatencyLimit, Limits, Policy
from trtops.ops.gate.ratio import decide_ratio
from trtops.ops.gate.result import GateResult
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking import builds
from trtops.tracking.memory import MemoryTracker

# Random weights put scores close together: their order says little about INT8 here.
INT8 = Limits(accuracy=AccuracyLimit(tolerances=Tolerances(atol=1e9, rtol=1e9, min_cosine=0.99)))
POLICY = Policy(precisions={"int8": INT8})
UNTIMED = Policy(limits=Limits(latency=None), precisions={"int8": replace(INT8, latency=None)})
DEFAULT = BuildConfig(options=OnnxRuntimeOptions(tactics=(), intra_op_threads=1))
Planted = tuple[str, Callable[[], GateResult], str]


def candidates(folder: Path, goals: Goals, minutes: float, simulated: bool) -> None:
    """Forty candidates: twenty regressions from 3 % slower and 0.1 % less accurate upwards, twenty unchanged."""
    found: Counter[str] = Counter()
    late = wrong = 0
    for title, call, expected in simulated_candidates(minutes) if simulated else real_candidates(folder, minutes):
        result, seconds = call()
        decision = result if isinstance(result, str) else result.decision
        found[f"{expected}: {decision}"] += 1
        wrong += decision not in (expected, "undecided")
        late += seconds > 60 * minutes
        lines = [] if isinstance(result, str) else [f.line for f in result.findings if f.subject == "latency"]
        print(f"{title:34} {decision:9} {seconds:6.1f} s  {''.join(lines)}", flush=True)
    goals.at_most("candidates decided wrongly", wrong, 0, "", str(dict(found)))
    goals.at_most("gates that exceed their budget", late, 0, "")


def simulated_candidates(minutes: float) -> Iterator[tuple[str, Callable[[], tuple[str, float]], str]]:
    """The timed part of gates, on simulated engines and machines."""
    noise = {"quiet": {}, "loaded": {"load": 0.5}, "drift": {"load": 0.1, "drift": 0.5}, "bursts": {"bursts": 0.2}}
    decisions = {"below": "accept", "above": "refuse", "open": "undecided"}
    for (name, kind), (number, ratio) in product(noise.items(), enumerate((1.03, 1.05, 1.08, 1.15, 1.3) + (1.0,) * 5)):

        def call(kind=kind, number=number, ratio=ratio) -> tuple[str, float]:  # type: ignore[no-untyped-def]
            machine = Machine(number, **kind)
            engine_process.time = machine  # type: ignore[assignment]
            sides = SimulatedEngine(machine, 2e-4 * ratio), SimulatedEngine(machine)
            limit, until = LatencyLimit(ratio=1.015), machine.now + 0.88 * 60 * minutes
            rounds = measure_rounds(*sides, limit, deciding=sides[0].metrics, until=until)  # type: ignore[arg-type]
            engine_process.time = time
            decided = decide_ratio(rounds.starts, limit.ratio, limit.confidence, last=rounds.ended)
            return decisions[decided.decision], machine.now

        yield f"{name}: {ratio - 1:.0%} slower", call, "refuse" if ratio > 1 else "accept"


def real_candidates(folder: Path, minutes: float) -> Iterator[tuple[str, Callable[[], tuple[GateResult, float]], str]]:
    tracker = MemoryTracker()
    usual = GateConfig(build=DEFAULT, policy=UNTIMED, register=False, keep_model=False, minutes=minutes)
    tight = replace(usual, policy=Policy(limits=Limits(latency=LatencyLimit(ratio=1.015), size=None)))

    def run(path: Path, config: GateConfig) -> Callable[[], tuple[GateResult, float]]:
        def call() -> tuple[GateResult, float]:
            begin = time.monotonic()
            return gate(path, config, tracker=tracker), time.monotonic() - begin

        return call

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
        plain, longer = (_fastest(each) for each in (proto, with_further_nodes(proto, nodes)))
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
    feed = {each.name: models.random(*each.shape, seed=0) for each in session.get_inputs()}
    return min(timed(lambda: session.run(None, feed), time.perf_counter)[0] for _ in range(600))


def planted_regressions(folder: Path, tracker: MemoryTracker) -> Iterator[Planted]:
    """A title, the gate's call, and the subject of its refusal."""
    usual = GateConfig(build=DEFAULT, policy=UNTIMED, register=False, keep_model=False)
    paths = {name: write(make(), folder, name) for name, make in ZOO.items()}

    def candidate(name: str, config: GateConfig, run_id: str) -> Callable[[], GateResult]:
        return lambda: gate(paths[name], replace(config, candidate=run_id), tracker=tracker)

    for name, path in paths.items():
        gate(path, replace(usual, register=True), tracker=tracker)
        wrong = write(with_wrong_weight(ZOO[name]()), folder / "wrong", name)
        yield f"wrong weight in {name}", lambda w=wrong: gate(w, usual, tracker=tracker), "accepted outputs"
    for name in ("ten_outputs", "convolutions", "deep"):
        large = write(with_ballast(ZOO[name]()), folder / "large", name)
        yield f"larger engine of {name}", lambda w=large: gate(w, usual, tracker=tracker), "size"
    again = gate(paths["ten_outputs"], usual, tracker=tracker)
    assert again.measured is not None
    for width in (again.measured.widths[i] for i in (2, 5, 9)):
        off = write(with_offset(ten_outputs(), width.name, 3 * width.width), folder / width.name, "ten_outputs")
        title = f"output {width.name} of ten off by 3 noise widths"
        yield title, lambda w=off: gate(w, usual, tracker=tracker), f"accepted outputs of {width.name}"
    for name in ("convolutions", "conv_net", "deep"):
        int8 = replace(usual, build=replace(DEFAULT, precision="int8"))
        gate(paths[name], replace(int8, register=True), tracker=tracker)
        lost = kept(tracker, paths[name], claiming(built(paths[name], DEFAULT), int8.build))
        yield f"{name} lost INT8", candidate(name, int8, lost), "precision"
    half = built(paths["transformer"], replace(DEFAULT, precision="fp16"))
    lost = kept(tracker, paths["transformer"], claiming(half, DEFAULT))
    yield "transformer lost FP32", candidate("transformer", usual, lost), "reference"
    timed = replace(usual, build=BuildConfig(options=OnnxRuntimeOptions(intra_op_threads=1)), policy=POLICY)
    for channels, size, layers in ((16, 24, 3), (32, 32, 3), (16, 48, 2), (24, 32, 4)):
        name = f"convolutions_{channels}_{size}"
        paths[name] = write(convolutions(channels, size, layers), folder, name)
        gate(paths[name], replace(timed, register=True, policy=UNTIMED), tracker=tracker)
        slow = kept(tracker, paths[name], slow_build(paths[name], timed.build))
        yield f"slower session of {name}", candidate(name, timed, slow), "latency"


def planted(folder: Path, goals: Goals) -> None:
    missed = 0
    for title, call, expected in planted_regressions(folder, MemoryTracker()):
        result = call()
        subject, _, output = expected.partition(" of ")
        refused = [finding for finding in result.findings if finding.outcome == "refuse"]
        right = result.decision == "refuse" and subject in {finding.subject for finding in refused}
        right = right and (not output or {finding.output for finding in refused} == {output})
        missed += not right
        print(f"{'right' if right else 'WRONG'}: {title}: {result.headline} (expected {expected})", flush=True)
    goals.at_most("planted regressions missed", missed, 0, "")


def cost(folder: Path) -> None:
    tracker = MemoryTracker()
    config = GateConfig(build=DEFAULT, policy=POLICY, keep_model=False)
    path = write(ZOO["conv_net"](), folder, "conv_net")
    gate(path, config, tracker=tracker)
    for label, policy in (("with latency", POLICY), ("without", UNTIMED)):
        result = gate(path, replace(config, policy=policy), tracker=tracker)
        assert result.measured is not None
        build = result.measured.candidate.build_seconds
        print(f"conv_net {label}: {result.seconds:.1f} s, its build {build:.2f} s of that", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=("cost", "candidates", "simulated", "planted"), default="cost")
    parser.add_argument("--minutes", type=float, default=5.0)
    given = parser.parse_args()
    with benchmark() as (goals, folder):
        os.environ.setdefault("TRTOPS_HOME", str(folder))
        if given.part in ("candidates", "simulated"):
            candidates(folder, goals, given.minutes, given.part == "simulated")
        elif given.part == "planted":
            planted(folder, goals)
        else:
            cost(folder)


if __name__ == "__main__":
    main()
