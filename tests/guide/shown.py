"""What the guide, repair, isolation and bundles are shown by, in tables: ``python -m tests.guide.shown [part ...]``.

Parts are ``guide``, ``windows``, ``bundles`` and ``repair``; all unless given. ``make guide`` runs them. Exits with 1 if a goal
was missed.
"""

from __future__ import annotations

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

import onnx

from tests.guide.planted import (
    APPROXIMATE,
    CHECK,
    FAULTS,
    FP16,
    FP32,
    FUSED,
    GELUS,
    MORE_TO_MEND,
    Planted,
    convolutional,
    deep_transformer,
    dense,
    embedded,
    feed_of,
    normed,
    saved,
    transformer,
)  # fmt: skip
from tests.ops.search.test_isolation import wrongly_fused
from trtops.comparator.report import Tolerances
from trtops.errors import ReproductionError
from trtops.ops.bundling.config import BundleConfig
from trtops.ops.bundling.op import bundle
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.guiding.op import guide
from trtops.ops.guiding.result import GuideResult
from trtops.ops.repairing.config import RepairConfig
from trtops.ops.repairing.op import repair
from trtops.ops.search.isolation.marking import IsolationConfig
from trtops.ops.search.isolation.window import isolate
from trtops.tracking.memory import MemoryTracker


def named(fault: Planted, result: GuideResult) -> bool:
    """Whether kind and place were named."""
    return result.kind in fault.kinds and any(place in result.places[:6] for place in fault.places)


def show_guide(folder: Path) -> bool:
    """Twenty planted faults: kind and place named in at least 18."""
    right = 0
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
        seconds = time.perf_counter() - started
        print(
            f"{fault.name:32} {'named' if good else 'MISSED':7} {result.kind:16} {', '.join(result.places[:3])[:40]:40} "
            f"{len(result.steps):3} questions {result.builds:3} builds {seconds:6.1f} s",
            flush=True,
        )
    print(f"guide: {right} of {len(FAULTS)} named (goal 18)")
    return right >= 18


def show_repair(folder: Path) -> bool:
    """Twenty planted faults that an engine can be built around: at least 19 repaired, and judged again by convert."""
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
    """Twenty builds that are judged against the model itself: planted faults, and sound ones."""
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


PARTS = {"guide": show_guide, "windows": show_windows, "bundles": show_bundles, "repair": show_repair}


def main(parts: list[str]) -> int:
    """Run parts, and say whether every goal was met."""
    with tempfile.TemporaryDirectory() as folder:
        met = [PARTS[part](Path(folder, part)) for part in parts or PARTS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
