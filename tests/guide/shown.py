"""What the guide, repair, isolation and bundles are shown by, in tables: ``python -m tests.guide.shown [part ...]``.

Parts are ``guide``, ``windows``, ``bundles``, ``repair`` and ``latencies``; all unless given. ``make guide`` runs them. Exits with 1 if a goal
was missed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.guide.by_hand import cost_by_hand
from tests.guide.planted import (
    APPROXIMATE,
    CHECK,
    FAULTS,
    FP16,
    FP32,
    FUSED,
    GELU,
    GELU_WEIGHTS,
    GELUS,
    INT8,
    MORE_TO_MEND,
    Planted,
    convolutional,
    deep_transformer,
    dense,
    embedded,
    feed_of,
    normed,
    range_cut,
    saved,
    transformer,
)  # fmt: skip
from tests.ops.search.test_isolation import wrongly_fused
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.comparator.report import Tolerances
from trtops.errors import ReproductionError
from trtops.ops.bundling.config import BundleConfig
from trtops.ops.bundling.op import bundle
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.guiding.op import guide
from trtops.ops.guiding.result import GuideResult
from trtops.ops.repairing.config import RepairConfig
from trtops.ops.repairing.op import Trying, repair
from trtops.ops.repairing.space import Point
from trtops.ops.result import op_run
from trtops.ops.search.isolation.marking import IsolationConfig
from trtops.ops.search.isolation.window import isolate
from trtops.spec import OnnxRuntimeOptions
from trtops.tracking import builds
from trtops.tracking.memory import MemoryTracker

SOME_TACTICS = ("GeluApproximation", "GeluFusionL2", "NchwcTransformer", "ConvActivationFusion", "MatMulAddFusion")


def named(fault: Planted, result: GuideResult) -> bool:
    """Whether kind and place were named."""
    return result.kind in fault.kinds and any(place in result.places[:6] for place in fault.places)


def show_guide(folder: Path) -> bool:
    """Twenty planted faults: kind and place named in at least 18; beside it what the single commands by hand cost."""
    right = builds = 0
    seconds = 0.0
    hands = []
    for number, fault in enumerate(FAULTS):
        path, config = fault.write(folder / str(number))
        started = time.perf_counter()
        try:
            result = guide(path, config)
        except Exception as exc:
            print(f"{fault.name:32} {type(exc).__name__}: {exc}")
            continue
        good = named(fault, result)
        right += good
        took = time.perf_counter() - started
        hands.append(cost_by_hand(fault, path, config))
        seconds, builds = seconds + took, builds + result.builds
        print(
            f"{fault.name:32} {'named' if good else 'MISSED':7} {result.kind:16} {', '.join(result.places[:3])[:40]:40} "
            f"{len(result.steps):3} questions {result.builds:3} builds {took / 60:5.2f} min; by hand {hands[-1].commands:2} commands "
            f"{hands[-1].builds:3} builds {hands[-1].seconds / 60:5.2f} min",
            flush=True,
        )
    print(
        f"guide: {right} of {len(FAULTS)} named (goal 18) with {builds} builds in {seconds / 60:.1f} min; by hand at least "
        f"{sum(each.builds for each in hands)} builds in {sum(each.seconds for each in hands) / 60:.1f} min"
    )
    return right >= 18


def show_repair(folder: Path) -> bool:
    """Twenty planted faults that an engine can be built around: at least 19 repaired, and re-evaluated by convert."""
    faults = [*(fault for fault in FAULTS if fault.mends), *MORE_TO_MEND]
    right = 0
    for number, fault in enumerate(faults):
        path, asked = fault.write(folder / str(number))
        check = replace(asked.check, latency_runs=10, warm_up=2)
        config = RepairConfig(
            build=asked.build,
            check=check,
            calibration_cache=asked.calibration_cache,
            output=str(path.parent / "fixed.json"),
        )
        started = time.perf_counter()
        result = repair(path, config)
        good = False
        if result.verdict == "good":
            chosen = ConvertConfig.from_json((path.parent / "fixed.json").read_bytes())
            good = convert(path, chosen, tracker=MemoryTracker()).verdict == "good"
        right += good
        seconds = time.perf_counter() - started
        print(
            f"{fault.name:32} {'repaired' if good else 'NOT':8} {result.headline[:60]:60} {result.builds:3} builds of "
            f"{result.size} {seconds:6.1f} s; {result.ended}",
            flush=True,
        )
    print(f"repair: {right} of {len(faults)} repaired (goal {len(faults) - len(faults) // 20})")
    return right >= len(faults) - len(faults) // 20


def show_windows(folder: Path) -> bool:
    """Ten faults in a transformer of twelve blocks: windows of at most 5 nodes around at least 9."""
    cases: list[tuple[str, set[str], Any, Any]] = [
        (f"fused wrongly: {', '.join(names)}", set(names), deep_transformer(), wrongly_fused(*names)) for names in FUSED
    ]
    for block in GELUS:
        names = {f"l{block}_g{i}" for i in range(5)}
        cases.append((f"GELU approximated in block {block}", names, deep_transformer(block), APPROXIMATE))
    right = 0
    for what, names, proto, side in cases:
        started = time.perf_counter()
        tolerances = Tolerances(atol=1e-5, rtol=1e-4) if side is APPROXIMATE else Tolerances(atol=1e-3, rtol=1e-3)
        result = isolate(proto, side, IsolationConfig(tolerances=tolerances), feeds=[feed_of(proto)])
        found = {node.name for node in result.nodes}
        good = 0 < len(found) <= 5 and bool(found & names)
        right += good
        seconds = time.perf_counter() - started
        print(
            f"{what:44} {'found' if good else 'MISSED':6} {result.how:5} {len(found)} of {result.total} nodes, {result.builds} builds {seconds:5.1f} s",
            flush=True,
        )
    print(f"windows: {right} of {len(cases)} found (goal 9)")
    return right >= 9


def _bundled_cases(folder: Path) -> Iterator[tuple[str, Path, ConvertConfig]]:
    """Twenty builds that are evaluated against the model itself: planted faults, and sound ones."""
    for number, fault in enumerate(FAULTS):
        path, asked = fault.write(folder / str(number))
        if asked.golden_model is None and fault.kinds != ("not repeatable",):  # a coin's verdict cannot be repeated
            yield (
                fault.name,
                path,
                ConvertConfig(build=asked.build, check=asked.check, calibration_cache=asked.calibration_cache),
            )
    more = {
        "dense, FP32": (dense(), FP32),
        "convolutional, FP32": (convolutional(), FP32),
        "dense, FP16": (dense(), FP16),
        "convolutional, FP16": (convolutional(), FP16),
        "transformer, FP32": (transformer(), FP32),
        "embedded, FP32": (embedded(), FP32),
        "normed, FP32": (normed(), FP32),
        "normed, FP16": (normed(), FP16),
    }
    for name, (proto, build) in more.items():
        place = folder / name
        place.mkdir(parents=True)
        onnx.save(proto, place / "model.onnx")
        yield (
            name,
            place / "model.onnx",
            ConvertConfig(build=build, check=replace(CHECK, data=saved(place, feed_of(proto)))),
        )


def show_bundles(folder: Path) -> bool:
    """Twenty bundles in an environment that has numpy and ONNX Runtime alone; again with random weights."""
    tracker = MemoryTracker()
    python = folder / "bare" / "bin" / "python"
    repeated = stripped = refused = count = 0
    for name, path, config in _bundled_cases(folder):
        run = convert(path, config, tracker=tracker)
        count += 1
        said = []
        for strip in (False, True):
            place = path.parent / f"bundle{int(strip)}"
            try:
                made = bundle(run.run_id, BundleConfig(output=f"{place}.zip", strip_weights=strip), tracker=tracker)
            except ReproductionError as exc:
                refused += strip
                said.append(f"refused: {exc}"[:100])
                continue
            with zipfile.ZipFile(made.path) as archive:
                archive.extractall(place)
            if not python.exists():
                venv.create(folder / "bare", with_pip=True)
                command = [str(python), "-m", "pip", "install", "--quiet", "-r", str(place / "constraints.txt")]
                subprocess.run(command, check=True, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
                bare = subprocess.run([str(python), "-c", "import trtops"], capture_output=True, cwd=folder)
                assert bare.returncode != 0, "the bare environment has trtops"
            again = subprocess.run([str(python), "reproduce.py"], cwd=place, capture_output=True, text=True)
            good = again.returncode == 0 and f"verdict: {run.verdict}" in again.stdout
            repeated += good and not strip
            stripped += good and strip
            said.append("repeated" if good else f"NOT: {again.stdout[-80:]} {again.stderr[-80:]}")
        print(f"{name:32} {run.verdict:5} as it is: {said[0]}; random weights: {said[1]}", flush=True)
    print(
        f"bundles: {repeated} of {count} repeated (goal all); {stripped} with random weights (goal 15), {refused} refused with the reason"
    )
    return repeated == count and stripped >= 15 and stripped + refused == count


def _small_cases(folder: Path) -> Iterator[tuple[str, Path, RepairConfig]]:
    """Cases of which every config can be built, with enough data that latencies are more than a clock's noise."""
    one_thread = OnnxRuntimeOptions(intra_op_threads=1)
    in_one_thread = {name: replace(build, options=one_thread) for name, build in {"fp16": FP16, "int8": INT8}.items()}
    squared = "[big] g = Mul(b, k) [sq] h = Mul(g, g) [root] c = Sqrt(h)"
    approximate = replace(
        APPROXIMATE, options=replace(one_thread, allow_approximation=True, tactics=SOME_TACTICS, tactic_seed=0)
    )
    cases = {
        "overflow, dense": (dense(squared, {"k": np.float32(3000)}), in_one_thread["fp16"], 4096, None),
        "overflow, convolutional": (convolutional(squared, {"k": np.float32(3000)}), in_one_thread["fp16"], 64, None),
        "tactic, convolutional": (convolutional(GELU, GELU_WEIGHTS), approximate, 64, None),
        "range cut, dense": (dense(GELU, GELU_WEIGHTS), in_one_thread["int8"], 4096, "c"),
    }
    for name, (proto, build, rows, cut) in cases.items():
        place = folder / name
        place.mkdir(parents=True)
        onnx.save(proto, place / "model.onnx")
        cache = range_cut(proto, cut, place)[1].calibration_cache if cut else None
        check = replace(CHECK, data=saved(place, feed_of(proto, rows=rows)), latency_runs=30, warm_up=3)
        config = RepairConfig(build=build, check=check, calibration_cache=cache)
        yield name, place / "model.onnx", replace(config, output=str(place / "fixed.json"))


def _all_that_pass(path: Path, config: RepairConfig) -> tuple[dict[Point, Any], int]:
    """An engine for every config that passes, and how many configs there are."""
    tracker = MemoryTracker()
    with op_run(tracker, "all", "all", kind="repair") as run:
        trying = Trying(path, Model.load(path), config, tracker, "all", {}, run, time.perf_counter())
        space = trying.space()
        found = {}
        for settings in space.all_settings():
            for size in range(len(space.measures) + 1):
                for measures in itertools.combinations(space.measures, size):
                    point = Point(measures=tuple(sorted(measures)), settings=settings)
                    outcome = trying(point)
                    if outcome.good:
                        build = builds.load_build(builds.holder_of_engine(tracker, tracker.info(outcome.run_id)))
                        found[point] = build.engine
    return found, space.size


def _quartiles(runners: dict[Point, Any], feed: Any, rounds: int) -> dict[Point, float]:
    """Lower quartiles of latencies in ms, in rounds forwards and backwards: what else the machine does makes them larger only."""
    measured: dict[Point, list[float]] = {point: [] for point in runners}
    order = list(runners)
    for _ in range(rounds):
        for point in order:
            for number in range(3):
                runners[point].infer(feed, check_inputs=False)
                if number:
                    measured[point].append(runners[point].last_inference_time() * 1e3)
        order.reverse()
    return {point: float(np.quantile(seconds, 0.25)) for point, seconds in measured.items()}


def show_latencies(folder: Path) -> bool:
    """What repair chooses on real engines, beside the fastest of all: found in some rounds, held against it in others."""
    met = True
    for name, path, config in _small_cases(folder):
        result = repair(path, config)
        engines, size = _all_that_pass(path, config)
        assert result.chosen in engines, f"{name}: {result.headline} does not pass when it is built again"
        feed = next(iter(config.check.open_for(Model.load(path))))
        with contextlib.ExitStack() as stack:
            backend = engine_backend(config.build.backend)
            runners = {p: stack.enter_context(backend.runner(engine)) for p, engine in engines.items()}
            first = _quartiles(runners, feed, 20)
            best = min(first, key=lambda point: first[point])
            pair = _quartiles({p: runners[p] for p in {result.chosen, best}}, feed, 60)
        ratio = pair[result.chosen] / pair[best]
        met &= ratio <= 1.05
        print(
            f"{name:26} {size:4} configs, {len(engines):3} pass; {result.builds:3} builds chose {result.headline[:40]:40} "
            f"{pair[result.chosen]:.3f} ms, the best of all {pair[best]:.3f} ms ({best.describe()[:40]}): {ratio:.3f}",
            flush=True,
        )
    print("latencies: each within 1.05 of the best of all" if met else "latencies: NOT within 1.05")
    return met


PARTS = {
    "guide": show_guide,
    "windows": show_windows,
    "bundles": show_bundles,
    "repair": show_repair,
    "latencies": show_latencies,
}


def main(parts: list[str]) -> int:
    """Run parts, and say whether every goal was met."""
    with tempfile.TemporaryDirectory() as folder:
        met = [PARTS[part](Path(folder, part)) for part in parts or PARTS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
