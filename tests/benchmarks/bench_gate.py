"""What the gate accepts, what it refuses, and what it costs, on engines of ONNX Runtime.

* ``cost``: the gate's own time compared with its builds.
* ``repeats``: unchanged pairs, the same engine and the same build made again; at most one of a hundred may be refused.
* ``planted``: twenty regressions; each must be refused for its own reason.
* ``builds``: gates on builds of twenty networks, with and without one bad build in ten.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests import models, zoo
from tests.benchmarks.harness import Goals, benchmark
from tests.gates import (
    ZOO,
    built,
    claiming,
    convolutions,
    kept,
    perceptron,
    renamed,
    slow_build,
    ten_outputs,
    with_ballast,
    with_offset,
    with_wrong_weight,
    write,
)
from trtops.comparator.report import Tolerances
from trtops.ops.gate.op import GateConfig, gate
from trtops.ops.gate.policy import AccuracyLimit, LatencyLimit, Limits, Policy
from trtops.ops.gate.result import GateResult
from trtops.ops.gate.tolerance import BuildShare, decide_share
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking import builds
from trtops.tracking.memory import MemoryTracker

# Random weights put scores close together: their order says little about INT8 here.
INT8 = Limits(accuracy=AccuracyLimit(tolerances=Tolerances(atol=1e9, rtol=1e9, min_cosine=0.99)))
POLICY = Policy(precisions={"int8": INT8})
UNTIMED = Policy(limits=Limits(latency=None), precisions={"int8": replace(INT8, latency=None)})
DEFAULT = BuildConfig(options=OnnxRuntimeOptions(tactics=(), intra_op_threads=1))
Planted = tuple[str, Callable[[], GateResult], str]


def repeats(folder: Path, goals: Goals, count: int) -> None:
    tracker = MemoryTracker()
    config = GateConfig(build=DEFAULT, policy=POLICY, register=False, keep_model=False)
    paths = [write(make(), folder, name) for name, make in ZOO.items()]
    register = replace(config, register=True, policy=UNTIMED)
    accepted = [(path, gate(path, register, tracker=tracker).holder) for path in paths]
    decisions: Counter[str] = Counter()
    rounds, seconds = [], []
    for number in range(count):
        path, holder = accepted[number % len(accepted)]
        candidate = None if number // len(accepted) % 2 == 1 else holder  # None builds again
        result = gate(path, replace(config, accepted=holder, candidate=candidate), tracker=tracker)
        assert result.ratio is not None
        decisions[result.decision] += 1
        rounds.append(result.ratio.rounds)
        seconds.append(result.seconds)
        print(f"{number + 1}/{count} {path.stem}: {result.headline}", flush=True)
    note = (
        f"{dict(decisions)}; {statistics.median(rounds):.0f} rounds, {statistics.median(seconds):.1f} s in the median"
    )
    goals.at_most("unchanged pairs refused", decisions["refuse"], max(1, count // 100), "pairs", note)


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


def slow_branch(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with products of matrices whose result is zero, and added to an output: the same outputs, slower."""
    make, output = onnx.helper.make_node, proto.graph.output[0].name
    changed = renamed(proto, output)
    arrays = {"slow_zeros": np.zeros((320, 320), np.float32), "slow_weight": models.random(320, 320, seed=3)}
    changed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    steps = [make("MatMul", [f"slow_{n}", "slow_weight"], [f"slow_{n + 1}"], f"slow_product_{n}") for n in range(12)]
    changed.graph.node.extend(
        [
            make("Cast", [changed.graph.input[0].name], ["slow_float"], "slow_cast", to=onnx.TensorProto.FLOAT),
            make("ReduceMax", ["slow_float"], ["slow_high"], "slow_max", keepdims=0),
            make("Mul", ["slow_high", "slow_zeros"], ["slow_0"], "slow_mul"),
            *steps,
            make("ReduceMax", ["slow_12"], ["slow_zero"], "slow_end", keepdims=0),
            make("Add", ["before", "slow_zero"], [output], "slow_add"),
        ]
    )
    return changed


def networks() -> dict[str, onnx.ModelProto]:
    """Twenty networks: those of the gate's tests, of the tests of verdicts, and some of other sizes."""
    found = {name: make() for name, make in ZOO.items()}
    for case in (zoo.segmentation, zoo.classifier, zoo.masked_attention, zoo.key_value_cache, zoo.lstm, zoo.boxes):
        found[case.__name__] = case().fixed().proto
    found |= {f"perceptron_{w}_{n}": perceptron(w, n) for w, n in ((64, 2), (128, 8), (384, 3), (512, 2))}
    return found | {
        f"convolutions_{c}_{s}": convolutions(c, s, n)
        for c, s, n in ((8, 16, 2), (24, 24, 3), (32, 16, 4), (12, 40, 2))
    }


def on_builds(folder: Path, goals: Goals, count: int) -> None:
    """Real gates of three fresh and two planted builds of each network; then gates on builds drawn from them."""
    rough = LatencyLimit(ratio=1.5, rounds=2, max_rounds=60)
    timed = GateConfig(
        build=BuildConfig(options=OnnxRuntimeOptions(intra_op_threads=1, timing_seconds=1.0)),
        policy=Policy(limits=Limits(latency=rough)),
        check=replace(GateConfig().check, self_check=False),
        register=False,
        keep_model=False,
        accept_unproven=True,
        minutes=1.0,
    )
    random, wrong = np.random.default_rng(1), Counter[str]()
    wanted = BuildShare(builds=20)
    print(
        "| network | fresh builds | slow build | FP32 build | unplanted accepted | planted refused | accepted | open |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name, proto in networks().items():
        tracker = MemoryTracker()
        path, slow_path = write(proto, folder, name), write(slow_branch(proto), folder / "slow", name)
        accepted = gate(path, timed, tracker=tracker).holder
        own = replace(timed, accepted=accepted)
        fresh = [gate(path, own, tracker=tracker) for _ in range(3)]
        usual = builds.load_build(tracker.load(accepted))
        slow_engine = replace(usual, engine=built(slow_path, DEFAULT).engine)
        slow = gate(path, replace(own, candidate=kept(tracker, path, slow_engine)), tracker=tracker)
        int8 = replace(timed, build=replace(DEFAULT, precision="int8"), policy=UNTIMED)
        quantized = gate(path, int8, tracker=tracker).holder
        lost = kept(tracker, path, claiming(built(path, DEFAULT), int8.build))
        plain = gate(path, replace(int8, accepted=quantized, candidate=lost), tracker=tracker)
        # Drawn from the verdicts of the real gates.
        outcomes = {True: [slow.decision, plain.decision], False: [each.decision for each in fresh]}
        decisions: dict[float, Counter[str]] = {0.0: Counter(), 0.1: Counter()}
        for share, found in decisions.items():
            for _ in range(count):
                seen: Counter[str] = Counter()
                for number in range(1, wanted.builds + 1):
                    seen[random.choice(outcomes[bool(random.random() < share)])] += 1
                    decision = decide_share(wanted, number, seen["refuse"], number - seen["accept"] - seen["refuse"])
                    if decision != "open":
                        break
                found[decision] += 1
        wrong["refused"] += decisions[0.0]["refuse"]
        wrong["accepted"] += decisions[0.1]["accept"]
        cells = [
            ", ".join(each.decision for each in fresh),
            *(
                f"{g.decision}: {', '.join(f.subject for f in g.findings if f.outcome == 'refuse')}"
                for g in (slow, plain)
            ),
        ]
        cells += [
            f"{decisions[0.0]['accept'] / count:.0%}",
            *(f"{decisions[0.1][d] / count:.0%}" for d in ("refuse", "accept", "open")),
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    goals.at_most("gates on unplanted builds refused", wrong["refused"], 0.05 * count * len(networks()), "gates")


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
    parser.add_argument("part", nargs="?", choices=("cost", "repeats", "planted", "builds"), default="cost")
    parser.add_argument("--count", type=int, default=100)
    given = parser.parse_args()
    with benchmark() as (goals, folder):
        os.environ.setdefault("TRTOPS_HOME", str(folder))
        if given.part == "repeats":
            repeats(folder, goals, given.count)
        elif given.part == "builds":
            on_builds(folder, goals, given.count)
        elif given.part == "planted":
            planted(folder, goals)
        else:
            cost(folder)


if __name__ == "__main__":
    main()
