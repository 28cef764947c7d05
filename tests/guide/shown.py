"""What the guide, repair, isolation and bundles are shown by, in tables: ``python -m tests.guide.shown [part ...]``.

Parts are ``guide``, ``windows``, ``bundles`` and ``repair``; all unless given. ``make guide`` runs them. Exits with 1 if a goal
was missed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.guide.planted import FAULTS, Planted
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.guiding.op import guide
from trtops.ops.guiding.result import GuideResult
from trtops.ops.repairing.config import RepairConfig
from trtops.ops.repairing.op import repair
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
    """Planted faults that an engine can be built around: all but one in twenty repaired, and judged again by convert."""
    faults = [fault for fault in FAULTS if fault.mends]
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


PARTS = {"guide": show_guide, "repair": show_repair}


def main(parts: list[str]) -> int:
    """Run parts, and say whether every goal was met."""
    with tempfile.TemporaryDirectory() as folder:
        met = [PARTS[part](Path(folder, part)) for part in parts or PARTS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
