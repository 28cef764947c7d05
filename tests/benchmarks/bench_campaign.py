"""Campaigns in an embedded store: reading and diffing a finished one.

Goals: 1,000 iterations of 200 layers are read, compared and logged within 3 s of CPU time, 10,000 within 30 s.

A campaign of 400 iterations stays flat: over it an iteration takes at most a tenth more CPU time, and the process grows
by at most 2 kB per iteration; the lower end of each 95 % interval counts.
"""

import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests import campaigns as cases
from tests import models
from tests.benchmarks.harness import Goals, benchmark, in_turns, timed
from tests.tactics.synthetic import campaign
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import CampaignProgress, debug_build
from trtops.ops.campaign.diff_tactics import log_diff
from trtops.tactics.diff import diff
from trtops.tracking import campaigns, schema
from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker

LAYERS = 200
LIMITS = {1_000: 3.0, 10_000: 30.0}
WARM_UP = 100  # iterations that fill caches
# Neighbours resemble each other on a shared machine, so errors are those of means of this many iterations.
TOGETHER = 20
# A fixed piece of work is timed after each iteration; a slope that it shares is the machine's.
WORK = {f"name {i}": [i * 0.5, str(i), {"value": i}] for i in range(3000)}


def bench_diff(goals: Goals, tracker: MlflowTracker, builds: int) -> None:
    run = tracker.start("bench", f"campaign of {builds}", kind="debug_build")
    run.log_json(DebugBuildConfig(), schema.Artifact.CAMPAIGN)
    campaigns.log_table(run, campaign(5, builds, layers=LAYERS, noise=0.05).table)
    run.finish("bad")

    def read() -> None:
        campaigns._parse_table.cache_clear()
        campaigns.load_table(tracker, run.id)

    def whole() -> None:
        campaigns._parse_table.cache_clear()
        table = campaigns.load_table(tracker, run.id)
        with tracked(tracker, "bench", "diff", kind="diff_tactics") as logged:
            log_diff(logged, diff(table))
            logged.finish("bad")

    seconds = in_turns({"read": read, "whole": whole}, 3)
    goals.at_most(
        f"diff of {builds} builds", seconds["whole"], LIMITS[builds], note=f"reading: {seconds['read']:.3f} s"
    )


def slope(values: Sequence[float]) -> tuple[float, float]:
    """Least squares slope of values over their index, and half the width of its 95 % interval."""
    means = np.array(values[: len(values) // TOGETHER * TOGETHER]).reshape(-1, TOGETHER).mean(axis=1)
    x = np.arange(len(means)) * float(TOGETHER)
    x -= x.mean()
    gradient = float((x * means).sum() / (x * x).sum())
    residuals = means - means.mean() - gradient * x
    error = math.sqrt(float((residuals**2).sum()) / (len(means) - 2) / float((x * x).sum()))
    return gradient, 2.0 * error


def bench_long_campaign(goals: Goals, folder: Path, count: int) -> None:
    spent: list[float] = []
    fixed: list[float] = []
    memory: list[float] = []

    def note(progress: CampaignProgress) -> None:
        spent.append(time.process_time() - sum(fixed))
        memory.append(float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        fixed.append(timed(lambda: json.loads(json.dumps(WORK)), time.process_time)[0])

    store = folder / "long"
    debug_build(models.identity().write(folder), cases.of_one_node(count), tracker=MlflowTracker(store), progress=note)
    stored = sum(file.stat().st_size for file in store.rglob("*") if file.is_file()) / count
    iteration_seconds, yard = np.diff(spent)[WARM_UP:], np.array(fixed[WARM_UP + 1 :])
    kernel = np.ones(TOGETHER) / TOGETHER
    near = np.convolve(np.pad(yard, TOGETHER // 2, mode="edge"), kernel, mode="same")[TOGETHER // 2 :][
        : len(iteration_seconds)
    ]
    steady = iteration_seconds * yard.mean() / near
    slower, doubt = (estimate * count / steady.mean() for estimate in slope(steady))
    grown, grown_doubt = (estimate / 1e3 for estimate in slope(memory[WARM_UP + 1 :]))
    print(f"{iteration_seconds.mean() * 1e3:.1f} ms of CPU time and {stored / 1e3:.1f} kB in the store per iteration")
    goals.at_most("slower over the campaign", 100 * (slower - doubt), 10.0, "%", f"{100 * slower:.1f} in the mean")
    goals.at_most("growth per iteration", grown - grown_doubt, 2.0, "kB", f"{grown:.2f} in the mean")


def main() -> None:
    with benchmark() as (goals, folder):
        # First: what the others leave in this process would hide the growth.
        bench_long_campaign(goals, folder, 400)
        tracker = MlflowTracker(folder / "mlruns")
        for builds in LIMITS:
            bench_diff(goals, tracker, builds)


if __name__ == "__main__":
    main()
