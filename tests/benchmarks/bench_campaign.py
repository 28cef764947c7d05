"""Campaigns in an embedded store: reading and diffing a finished one, and what an iteration adds to its build.

Goals: 1,000 iterations of 200 layers are read, compared and logged within 3 s of CPU time, 10,000 within 30 s.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path

from tests import campaigns as cases
from tests.benchmarks.harness import Goals, in_turns
from tests.tactics.synthetic import campaign
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import Progress, debug_build
from trtops.ops.campaign.diff_tactics import log_diff
from trtops.tactics.diff import diff
from trtops.tracking import campaigns, schema
from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker

LAYERS = 200
LIMITS = {1_000: 3.0, 10_000: 30.0}


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

    found = in_turns({"read": read, "whole": whole}, 3)
    goals.at_most(f"diff of {builds} builds", found["whole"], LIMITS[builds], note=f"reading: {found['read']:.3f} s")


def bench_iterations(tracker: MlflowTracker, folder: Path) -> None:
    model, data = cases.two_blocks(folder)
    builds: list[float] = []
    times: list[float] = []

    def note(now: Progress) -> None:
        times.append(time.perf_counter())
        if now.last is not None:
            builds.append(now.last.build_seconds)

    debug_build(model, cases.config(data, until=30), tracker=tracker, progress=note)
    iteration = statistics.median(b - a for a, b in itertools.pairwise(times[5:]))
    print(
        f"an iteration takes {iteration * 1e3:.0f} ms, its build {statistics.median(builds[5:]) * 1e3:.0f} ms of that"
    )


def main() -> None:
    goals = Goals()
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as folder:
        tracker = MlflowTracker(Path(folder) / "mlruns")
        for builds in LIMITS:
            bench_diff(goals, tracker, builds)
        bench_iterations(tracker, Path(folder))
    goals.exit()


if __name__ == "__main__":
    main()
