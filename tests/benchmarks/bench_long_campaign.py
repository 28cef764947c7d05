"""A campaign of 400 iterations, or 2,000 with ``--full``: time and memory per iteration stay flat.

The model has one node, so the campaign and the store are measured. Goals: over the campaign an iteration takes at most
a tenth more CPU time, and the process grows by at most 2 kB per iteration; the lower end of each 95 % interval counts.
After each iteration a fixed piece of work is timed as well, and a slope that it shares is the machine's.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests import models
from tests.benchmarks.harness import Goals, full_size, timed
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import Progress, debug_build
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking.mlflow import MlflowTracker

WARM_UP = 100  # iterations that fill caches
TOGETHER = 20  # neighbours resemble each other on a shared machine, so errors are those of means
WORK = {f"name {i}": [i * 0.5, str(i), {"value": i}] for i in range(3000)}


def slope(values: Sequence[float]) -> tuple[float, float]:
    """Least squares slope of values over their index, and half the width of its 95 % interval."""
    means = np.array(values[: len(values) // TOGETHER * TOGETHER]).reshape(-1, TOGETHER).mean(axis=1)
    x = np.arange(len(means)) * float(TOGETHER)
    x -= x.mean()
    found = float((x * means).sum() / (x * x).sum())
    residuals = means - means.mean() - found * x
    error = math.sqrt(float((residuals**2).sum()) / (len(means) - 2) / float((x * x).sum()))
    return found, 2.0 * error


def main() -> None:
    count = 2000 if full_size(__doc__, "2,000 iterations") else 400
    goals = Goals()
    spent: list[float] = []
    fixed: list[float] = []
    memory: list[float] = []

    def note(now: Progress) -> None:
        spent.append(time.process_time() - sum(fixed))
        memory.append(float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        fixed.append(timed(lambda: json.loads(json.dumps(WORK)), time.process_time)[0])

    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as name:
        folder = Path(name)
        tracker = MlflowTracker(folder / "mlruns")
        config = DebugBuildConfig(
            build=BuildConfig(options=OnnxRuntimeOptions(timing_iterations=1, intra_op_threads=1)),
            check=CheckConfig(plots="never", latency_runs=0),
            random_tactics=True,
            until=count,
            max_iterations=count,
            keep_model=False,
        )
        debug_build(models.identity().write(folder), config, tracker=tracker, progress=note)
        stored = sum(file.stat().st_size for file in (folder / "mlruns").rglob("*") if file.is_file()) / count
    own, yard = np.diff(spent)[WARM_UP:], np.array(fixed[WARM_UP + 1 :])
    kernel = np.ones(TOGETHER) / TOGETHER
    near = np.convolve(np.pad(yard, TOGETHER // 2, mode="edge"), kernel, mode="same")[TOGETHER // 2 :][: len(own)]
    steady = own * yard.mean() / near
    slower, doubt = (each * count / steady.mean() for each in slope(steady))
    grown, grown_doubt = (each / 1e3 for each in slope(memory[WARM_UP + 1 :]))
    print(f"{own.mean() * 1e3:.1f} ms of CPU time and {stored / 1e3:.1f} kB in the store per iteration")
    goals.at_most("slower over the campaign", 100 * (slower - doubt), 10.0, "%", f"{100 * slower:.1f} in the mean")
    goals.at_most("growth per iteration", grown - grown_doubt, 2.0, "kB", f"{grown:.2f} in the mean")
    goals.exit()


if __name__ == "__main__":
    main()
