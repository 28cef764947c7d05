"""A long campaign: whether time and memory per iteration stay flat, and how much room each takes in the store.

A model of one node, so that what is measured is the campaign and the store, not ONNX Runtime; 400 iterations, or 2,000 with
``--full``. Flat means: over the whole campaign an iteration takes at most a tenth more processor time, and the
process grows by at most 2 kB an iteration. The exit code is 1 if the slope's whole 95 % interval lies above that.

Where others use the machine more and more, the same work takes more and more processor time. So after each iteration a fixed
piece of work is timed as well, and what goes up with it does not count.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import models
from trtops.ops.campaign.config import DebugBuildConfig, Vary
from trtops.ops.campaign.debug_build import Progress, debug_build
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking.mlflow import MlflowTracker

WARM_UP = 100  # iterations that fill caches
TOGETHER = 20  # neighbours resemble each other on a machine that others use, so errors are those of means of so many
SLOWER = 0.10
KILOBYTES = 2.0


def slope(values: Sequence[float]) -> tuple[float, float]:
    """Least squares slope of values over their index, and half the width of its 95 % interval."""
    means = np.array(values[: len(values) // TOGETHER * TOGETHER]).reshape(-1, TOGETHER).mean(axis=1)
    x = np.arange(len(means)) * float(TOGETHER)
    x -= x.mean()
    found = float((x * means).sum() / (x * x).sum())
    residuals = means - means.mean() - found * x
    error = math.sqrt(float((residuals**2).sum()) / (len(means) - 2) / float((x * x).sum()))
    return found, 2.0 * error


def yardstick() -> float:
    """Processor seconds of a fixed piece of work: texts, objects and memory, as an iteration has them."""
    begin = time.process_time()
    for _ in range(3):
        json.loads(json.dumps(WORK))
    return time.process_time() - begin


WORK = {f"name {i}": [i * 0.5, str(i), {"value": i}] for i in range(1000)}


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> int:
    count = 2000 if "--full" in sys.argv else 400
    ends: list[float] = []
    spent: list[float] = []
    yards: list[float] = []
    memory: list[float] = []

    def note(now: Progress) -> None:
        ends.append(time.perf_counter())
        spent.append(time.process_time() - sum(yards))
        memory.append(float(resident()))
        yards.append(yardstick())

    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as name:
        folder = Path(name)
        tracker = MlflowTracker(folder / "mlruns")
        config = DebugBuildConfig(
            build=BuildConfig(options=OnnxRuntimeOptions(timing_iterations=1, intra_op_threads=1)),
            check=CheckConfig(plots="never", latency_runs=0),
            vary=Vary(random_tactics=True),
            until=count,
            max_iterations=count,
            keep_model=False,
        )
        empty = size_of(folder / "mlruns")
        result = debug_build(models.identity().write(folder), config, tracker=tracker, progress=note)
        finishing = time.perf_counter() - ends[-1]
        room = (size_of(folder / "mlruns") - empty) / count
        database = (folder / "mlruns" / "mlflow.db").stat().st_size / count
    first = WARM_UP
    print(f"{result.iterations} iterations in {ends[-1] - ends[0]:.0f} s, diff and end {finishing:.1f} s")
    wall, own, fixed = np.diff(ends)[first:], np.diff(spent)[first:], np.array(yards[first + 1 :])
    near = np.convolve(np.pad(fixed, TOGETHER // 2, mode="edge"), np.ones(TOGETHER) / TOGETHER, mode="same")
    by_yardstick = own * fixed.mean() / near[TOGETHER // 2 : TOGETHER // 2 + len(own)]
    series = {
        "wall": wall,
        "CPU of this process": own,
        "the fixed work": fixed,
        "CPU as the fixed work has it": by_yardstick,
    }
    for clock, seconds in series.items():
        slower, doubt = (each * count / seconds.mean() for each in slope(seconds))
        told = f"{100 * slower:+.1f} % over the campaign (95 %: +-{100 * doubt:.1f} %)"
        print(f"{clock}: {seconds.mean() * 1e3:.1f} ms an iteration, {told}")
    grown, grown_doubt = (each / 1e3 for each in slope(memory[first + 1 :]))
    print(f"memory: {memory[-1] / 1e6:.0f} MB at the end, {grown:+.2f} kB an iteration (95 %: +-{grown_doubt:.2f})")
    print(f"store: {room / 1e3:.1f} kB an iteration, of which the database {database / 1e3:.1f} kB")
    flat = slower - doubt <= SLOWER and grown - grown_doubt <= KILOBYTES
    print("flat" if flat else "NOT FLAT")
    return int(not flat)


if __name__ == "__main__":
    sys.exit(main())
