"""Campaigns in an embedded store: reading and diffing a finished one, and what an iteration costs beside its build.

Wall seconds and CPU seconds, the least of three; the exit code goes by the latter. What is read run by run, as a campaign is
that was killed, stands beside it for comparison. The targets: 1,000 iterations of 200 layers within 3 s, 10,000 within 30 s.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import campaigns as cases
from tests.tactics.synthetic import campaign
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.campaign.diff_tactics import DiffTacticsConfig, diff_tactics
from trtops.ops.campaign.iteration import IterationResult
from trtops.tactics.record import TacticChoice, TacticRecord
from trtops.tactics.table import VERDICTS, CampaignTable
from trtops.tracking import campaigns, schema
from trtops.tracking.mlflow import MlflowTracker

LAYERS = 200
LIMITS = {1_000: 3.0, 10_000: 30.0}


def least(call: Callable[[], object], repeats: int = 3) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = [], []
    for _ in range(repeats):
        start, start_cpu = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    return min(wall), min(cpu)


def finished(tracker: MlflowTracker, table: CampaignTable) -> str:
    """A finished campaign with this table."""
    run = tracker.start("bench", f"campaign of {len(table)}", kind="debug_build")
    run.log_json(DebugBuildConfig(), schema.Artifact.CAMPAIGN)
    campaigns.log_table(run, table)
    run.finish("bad")
    return run.id


def bench_diff(tracker: MlflowTracker, builds: int) -> bool:
    run_id = finished(tracker, campaign(5, builds, layers=LAYERS, noise=0.05).table)

    def read() -> None:
        campaigns._parse_table.cache_clear()
        campaigns.load_table(tracker, run_id)

    def whole() -> None:
        campaigns._parse_table.cache_clear()
        diff_tactics(DiffTacticsConfig(runs=(run_id,)), tracker=tracker)

    (read_wall, _), (wall, cpu) = least(read), least(whole)
    ok = cpu <= LIMITS[builds]
    print(
        f"{builds:6} iterations x {LAYERS} layers: read {read_wall:6.3f} s; read, diff, draw and log {wall:6.2f} s "
        f"({cpu:.2f} s CPU); at most {LIMITS[builds]:g} s of CPU: {'kept' if ok else 'MISSED'}"
    )
    return ok


def bench_run_by_run(tracker: MlflowTracker, builds: int) -> None:
    """The same where no table was written: each iteration's run is found, loaded and its record parsed."""
    table = campaign(5, builds, layers=LAYERS).table
    parent = tracker.start("runs", "campaign", kind="debug_build")
    for number, (verdict, codes) in enumerate(zip(table.verdicts, table.codes)):
        choices = tuple(
            TacticChoice(layer=layer, op="Conv", tactic=table.choices[code].tactic)
            for layer, code in zip(table.layers, codes)
        )
        record = TacticRecord(mechanism="onnxruntime", backend_version="1", device_sha256="d", choices=choices)
        tags = {schema.Tag.ITERATION: str(number)}
        run = tracker.start("runs", f"iteration {number}", kind="iteration", tags=tags, parent=parent.id)
        run.log_json(record, schema.Artifact.TACTICS)
        run.finish(VERDICTS[verdict])
    wall, _ = least(lambda: campaigns.load_table(tracker, parent.id))
    print(f"{builds:6} iterations read run by run, without a table: {wall:6.2f} s ({wall / builds * 1e3:.1f} ms each)")


def bench_iterations(tracker: MlflowTracker, folder: Path) -> None:
    """What a campaign adds to its builds: the child process, the evaluation, and all that is logged."""
    model, data = cases.two_blocks(folder)
    results: list[IterationResult] = []
    times: list[float] = []
    debug_build(
        model,
        cases.config(data, until=30),
        tracker=tracker,
        progress=lambda p: (results.append(p.last) if p.last else None, times.append(time.perf_counter()))[1],
    )
    iteration = statistics.median(b - a for a, b in itertools.pairwise(times[5:]))
    build = statistics.median(result.build_seconds for result in results[5:])
    print(f"an iteration takes {iteration * 1e3:.0f} ms, its build {build * 1e3:.0f} ms of that")


def main() -> int:
    """Run everything; exit code 1 if a target was missed."""
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as folder:
        tracker = MlflowTracker(Path(folder) / "mlruns")
        kept = [bench_diff(tracker, builds) for builds in LIMITS]
        bench_run_by_run(tracker, 200)
        bench_iterations(tracker, Path(folder))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
