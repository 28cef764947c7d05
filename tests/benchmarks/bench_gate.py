"""What the gate lets pass, what it stops, and what it costs, on real engines of ONNX Runtime.

Parts, each run by name:

* ``repeats``: unchanged pairs again and again (the same engine, and the same build made again), under the usual limits; at
  most one of a hundred may be refused,
* ``planted``: twenty regressions, each of which must be refused for what it is,
* ``matrix``: six models in three precisions on the releases whose constraints files are given, each against an engine that is
  accepted here,
* ``cost``: the gate's own time beside its builds; this one unless another is named, of one model unless ``--full`` is said.

Run: ``python tests/benchmarks/bench_gate.py planted``, ``... repeats --count 100``, ``... matrix ort-1.23.txt ort-1.27.txt``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.gates import (
    ZOO,
    built,
    claiming,
    convolutions,
    kept,
    slow_build,
    ten_outputs,
    with_ballast,
    with_offset,
    with_wrong_weight,
    write,
)
from trtops.comparator.report import Tolerances
from trtops.ops.gate.environments import HERE, Release
from trtops.ops.gate.matrix import MatrixConfig, gate_all
from trtops.ops.gate.op import GateConfig, gate
from trtops.ops.gate.policy import AccuracyLimit, LatencyLimit, Limits, Policy
from trtops.ops.gate.result import GateResult
from trtops.spec import BuildConfig, OnnxRuntimeOptions, Precision
from trtops.tracking.memory import MemoryTracker

# Random weights put scores close together: their order says little about INT8 here.
INT8 = Limits(accuracy=AccuracyLimit(tolerances=Tolerances(atol=1e9, rtol=1e9, min_cosine=0.99)))
POLICY = Policy(precisions={"int8": INT8})
UNTIMED = Policy(limits=Limits(latency=None), precisions={"int8": replace(INT8, latency=None)})
DEFAULT = BuildConfig(options=OnnxRuntimeOptions(tactics=(), intra_op_threads=1))


def say(*words: object) -> None:
    print(f"[{time.strftime('%H:%M:%S')}]", *words, flush=True)


def reasons(result: GateResult) -> list[str]:
    return sorted({finding.subject for finding in result.findings if finding.outcome == "refuse"})


def repeats(folder: Path, count: int) -> bool:
    """Unchanged pairs: how many are accepted, refused, or need more measurement."""
    tracker = MemoryTracker()
    config = GateConfig(build=DEFAULT, policy=POLICY, register=False, keep_model=False)
    names = list(ZOO)
    accepted = {}
    for name in names:
        path = write(ZOO[name](), folder, name)
        accepted[name] = (path, gate(path, replace(config, register=True, policy=UNTIMED), tracker=tracker).holder)
    decisions: Counter[str] = Counter()
    rounds, seconds = [], []
    for number in range(count):
        name = names[number % len(names)]
        path, holder = accepted[name]
        again = number // len(names) % 2 == 1
        asked = replace(config, accepted=holder, candidate=None if again else holder)
        result = gate(path, asked, tracker=tracker)
        decisions[result.decision] += 1
        assert result.ratio is not None
        rounds.append(result.ratio.rounds)
        seconds.append(result.seconds)
        ratio = result.ratio
        say(
            f"{number + 1}/{count} {name}{' built again' if again else ''}: {result.decision}, ratio {ratio.ratio:.3f} "
            f"({ratio.low:.3f} to {ratio.high:.3f}) after {ratio.rounds} rounds, {result.seconds:.1f} s; {dict(decisions)} "
            f"{'; '.join(result.reasons)[:200]}"
        )
    say(
        f"{count} unchanged pairs: {dict(decisions)}; rounds median {statistics.median(rounds):.0f}, most {max(rounds)}; seconds "
        f"median {statistics.median(seconds):.1f}"
    )
    return decisions["refuse"] <= max(1, count // 100)


Planted = tuple[str, Callable[[], GateResult], str]


def planted_regressions(folder: Path, tracker: MemoryTracker) -> Iterator[Planted]:
    """What was planted, the gate's call, and the reason that it must be refused for."""
    usual = GateConfig(build=DEFAULT, policy=UNTIMED, register=False, keep_model=False)
    kinds = {name: write(make(), folder, name) for name, make in ZOO.items()}
    for name, path in kinds.items():
        gate(path, replace(usual, register=True), tracker=tracker)
        wrong = write(with_wrong_weight(ZOO[name]()), folder / "wrong", name)
        yield f"wrong weight in {name}", lambda w=wrong: gate(w, usual, tracker=tracker), "accepted outputs"
    for name in ("ten_outputs", "convolutions", "deep"):
        large = write(with_ballast(ZOO[name]()), folder / "large", name)
        yield f"larger engine of {name}", lambda w=large: gate(w, usual, tracker=tracker), "size"
    again = gate(kinds["ten_outputs"], usual, tracker=tracker)
    assert again.measured is not None
    for width in (again.measured.widths[i] for i in (2, 5, 9)):
        off = write(with_offset(ten_outputs(), width.name, 3 * width.width), folder / width.name, "ten_outputs")
        what = f"output {width.name} of ten off by 3 noise widths"
        yield what, lambda w=off: gate(w, usual, tracker=tracker), f"accepted outputs of {width.name}"
    for name in ("convolutions", "conv_net", "deep"):
        int8 = replace(usual, build=replace(DEFAULT, precision="int8"))
        gate(kinds[name], replace(int8, register=True), tracker=tracker)
        lost = replace(int8, candidate=kept(tracker, kinds[name], claiming(built(kinds[name], DEFAULT), int8.build)))
        yield f"{name} lost INT8", lambda p=kinds[name], c=lost: gate(p, c, tracker=tracker), "precision"
    half = built(kinds["transformer"], replace(DEFAULT, precision="fp16"))
    lost = replace(usual, candidate=kept(tracker, kinds["transformer"], claiming(half, DEFAULT)))
    yield "transformer lost FP32", lambda c=lost: gate(kinds["transformer"], c, tracker=tracker), "reference"
    timed = replace(usual, build=BuildConfig(options=OnnxRuntimeOptions(intra_op_threads=1)), policy=POLICY)
    for channels, size, layers in ((16, 24, 3), (32, 32, 3), (16, 48, 2), (24, 32, 4)):
        path = write(convolutions(channels, size, layers), folder, f"convolutions_{channels}_{size}")
        gate(path, replace(timed, register=True, policy=UNTIMED), tracker=tracker)
        slow = replace(timed, candidate=kept(tracker, path, slow_build(path, timed.build)))
        yield f"slower session of {path.stem}", lambda p=path, c=slow: gate(p, c, tracker=tracker), "latency"


def planted(folder: Path) -> bool:
    """Each regression, and whether it was refused for what it is."""
    right = count = 0
    for what, call, expected in planted_regressions(folder, MemoryTracker()):
        result = call()
        subject, _, output = expected.partition(" of ")
        outputs = {finding.output for finding in result.findings if finding.outcome == "refuse"}
        found = result.decision == "refuse" and subject in reasons(result) and (not output or outputs == {output})
        count, right = count + 1, right + found
        say(f"{'right' if found else 'WRONG'}: {what}: {result.headline} (expected {expected}); {result.seconds:.1f} s")
    say(f"{right} of {count} planted regressions were refused for the right reason")
    return right == count


def matrix(folder: Path, constraints: list[str], *, timed: bool, precisions: tuple[Precision, ...]) -> bool:
    """Every model, precision and release against what is accepted here."""
    tracker = MemoryTracker()
    models = tuple(str(write(make(), folder, name)) for name, make in ZOO.items())
    policy = replace(
        POLICY,
        limits=Limits(latency=LatencyLimit(max_rounds=32)),
        precisions={"int8": replace(INT8, latency=LatencyLimit(max_rounds=32))},
    )
    config = GateConfig(build=DEFAULT, policy=UNTIMED, keep_model=False)
    asked = MatrixConfig(models=models, precisions=precisions, gate=config)
    base = gate_all(asked, tracker=tracker)
    say("accepted here:", base.headline)
    releases = (HERE, *map(Release.parse, constraints))
    begun = time.perf_counter()
    result = gate_all(
        replace(asked, releases=releases, gate=replace(config, policy=policy if timed else UNTIMED, register=False)),
        tracker=tracker,
        progress=lambda done, total: say(f"{done} of {total}"),
    )
    wall = time.perf_counter() - begun
    say(result.page())
    for release in releases:
        cells = [cell for cell in result.cells if cell.release == release.name]
        widths = sorted(cell.widths for cell in cells if cell.widths is not None)
        say(
            f"{release.name}: {dict(Counter(cell.decision for cell in cells))}; noise widths median "
            f"{statistics.median(widths):.2g}, most {widths[-1]:.2g}; builds {sum(c.build_seconds for c in cells):.0f} s of "
            f"{sum(c.seconds for c in cells):.0f} s"
        )
    say(f"{len(result.cells)} candidates in {wall:.0f} s: {result.headline}")
    return all(cell.decision != "error" for cell in result.cells)


def cost(folder: Path, models: Sequence[str], repeats: int) -> bool:
    """The gate's own time beside its builds."""
    tracker = MemoryTracker()
    config = GateConfig(build=DEFAULT, policy=POLICY, keep_model=False)
    for name in models:
        path = write(ZOO[name](), folder, name)
        gate(path, config, tracker=tracker)
        for label, policy in (("with latency", POLICY), ("without", UNTIMED)):
            results = [gate(path, replace(config, policy=policy), tracker=tracker) for _ in range(repeats)]
            built_in = statistics.median(each.measured.candidate.build_seconds for each in results if each.measured)
            whole = statistics.median(each.seconds for each in results)
            say(f"{name} {label}: {whole:.1f} s in all, of which the build {built_in:.2f} s")
    return True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=("repeats", "planted", "matrix", "cost"), default="cost")
    parser.add_argument("constraints", nargs="*")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--precisions", nargs="+", default=("fp32", "fp16", "int8"))
    parser.add_argument("--full", action="store_true", help="cost: three models, thrice each")
    parser.add_argument(
        "--untimed", action="store_true", help="in a matrix: without latency, which takes most of the time"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as place:
        os.environ.setdefault("TRTOPS_HOME", place)
        folder = Path(place)
        if asked.part == "repeats":
            passed = repeats(folder, asked.count)
        elif asked.part == "matrix":
            passed = matrix(folder, asked.constraints, timed=not asked.untimed, precisions=tuple(asked.precisions))
        elif asked.part == "planted":
            passed = planted(folder)
        elif asked.full:
            passed = cost(folder, ("conv_net", "convolutions", "perceptron"), 3)
        else:
            passed = cost(folder, ("conv_net",), 1)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
