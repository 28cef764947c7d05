"""An embedded store: logging, listing, accepting and resuming.

Goals: ``runs list`` takes two seconds in a store of 10,000 runs, and so do ``runs promote`` and ``runs resolve``.
Logging a build (ten params, 200 metrics, six files of 1 to 50 MB) takes 1.3 times the copying of the files, and 150 ms.
A killed campaign that is resumed takes at most a second of CPU time more to its first iteration than a new one. A
signature takes at most 50 ms of CPU time.
"""

import contextlib
import functools
import multiprocessing
import os
import shutil
import signal
import sqlite3
import sys
import time
from pathlib import Path

from examples.digits import make_digits
from tests import campaigns as cases
from tests import models
from tests.benchmarks.harness import Goals, benchmark, in_turns, run_quietly, timed
from tests.keys import new_key
from trtops.ops.campaign.debug_build import CampaignProgress, debug_build
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.system import signing
from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker

MEGABYTES = (1, 2, 5, 10, 20, 50)
fork = multiprocessing.get_context("fork")


class Enough(Exception):
    """The first iteration is done."""


def recovery(folder: Path) -> tuple[float, float]:
    """CPU seconds to the first iteration of a new campaign, and of one that was killed."""
    tracker = MlflowTracker(folder / "mlruns")
    model = models.identity().write(folder)
    config = cases.of_one_node(200)

    def until_first(resume: str | None) -> float:
        def stop(progress: CampaignProgress) -> None:
            if progress.last is not None:
                ends.append(time.process_time())
                raise Enough

        ends: list[float] = []
        begin = time.process_time()
        with contextlib.suppress(Enough):
            debug_build(None if resume else model, config, tracker=tracker, resume=resume, progress=stop)
        return ends[0] - begin

    def live_and_die() -> None:
        def die(progress: CampaignProgress) -> None:
            if progress.done == 20:
                os.kill(os.getpid(), signal.SIGKILL)

        debug_build(model, config, tracker=tracker, experiment="killed", progress=die)

    until_first(None)  # imports
    beginning = until_first(None)
    child = fork.Process(target=live_and_die)
    child.start()
    child.join()
    [killed] = tracker.find("killed", status="running", tags={"trtops.kind": "debug_build"})
    return beginning, until_first(killed.id)


def log_large_build(folder: Path, goals: Goals) -> None:
    tracker = MlflowTracker(folder / "store")
    sources = [folder / f"{size}.plan" for size in MEGABYTES]
    for size, source in zip(MEGABYTES, sources):
        source.write_bytes(os.urandom(size << 20))

    def copy() -> None:
        (folder / "copy").mkdir()
        for source in sources:
            shutil.copyfile(source, folder / "copy" / source.name)

    def log() -> None:
        with tracked(tracker, "bench", "build", kind="build") as run:
            run.log_params({f"option_{i}": i for i in range(10)})
            run.log_metrics({("error", f"output_{i // 10}", f"stat_{i % 10}"): i * 0.5 for i in range(200)})
            for source in sources:
                run.log_file(source, f"engine/{source.name}")
            run.finish("good")

    def remove() -> None:  # memory that a virtual machine has never touched costs more than all the rest
        shutil.rmtree(folder / "copy")
        shutil.rmtree(folder / "store" / "artifacts")

    seconds = in_turns({"copy": copy, "log": log}, 9, between=remove)
    note = f"{sum(MEGABYTES)} MB in {len(MEGABYTES)} files; copying takes {seconds['copy']:.3f} s"
    goals.at_most("log a build", seconds["log"], 1.3 * seconds["copy"] + 0.150, note=note)


def fill(folder: Path, size: int) -> MlflowTracker:
    """A store with ``size`` copies of a run, and the run itself."""
    tracker = MlflowTracker(folder)
    with tracked(tracker, "bench", "build", kind="build") as run:
        run.log_params({f"option_{i}": i for i in range(20)})
        run.log_metrics({("error", f"output_{i // 10}", f"stat_{i % 10}"): i * 0.5 for i in range(40)})
        run.finish("good")
    with contextlib.closing(sqlite3.connect(tracker.store.database)) as database, database:  # type: ignore[union-attr]
        for table in ("runs", "tags", "params", "latest_metrics"):
            query = f"SELECT * FROM {table} WHERE run_uuid = ?"
            database.row_factory = sqlite3.Row
            rows = [dict(row) for row in database.execute(query, (run.id,)).fetchall()]
            copies = [tuple({**row, "run_uuid": f"{i:032x}"}.values()) for i in range(size) for row in rows]
            marks = ", ".join("?" * len(rows[0]))
            database.executemany(f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ({marks})", copies)
    return tracker


def list_runs(folder: Path, goals: Goals) -> None:
    """``runs list`` as a process of its own, in a store of 10,000 runs."""
    fill(folder / "listed", 10_000)
    command = [sys.executable, "-m", "trtops.cli", "runs", "list", "--store", str(folder / "listed")]
    seconds = in_turns({"list": lambda: run_quietly(command, folder)}, 5)["list"]
    goals.at_most("list 10,000 runs", seconds, 2.0)


def accept_engines(folder: Path, goals: Goals) -> None:
    """``runs promote`` and ``runs resolve`` of a digits model, as processes of their own."""
    digits, store = make_digits(folder / "demo"), folder / "accepted"
    config = ConvertConfig(check=CheckConfig(data=str(digits.images), labels=str(digits.labels)))
    result = convert(digits.model, config, tracker=MlflowTracker(store))
    for verb, subject in (("promote", result.run_id), ("resolve", str(digits.model))):
        command = [sys.executable, "-m", "trtops.cli", "runs", verb, subject, "--store", str(store)]
        seconds = in_turns({verb: functools.partial(run_quietly, command, folder)}, 5)[verb]
        goals.at_most(f"runs {verb}", seconds, 2.0)


def sign(folder: Path) -> None:
    """Sign a hundred builds of twenty files."""
    new_key(folder / "key.pem", folder / "key.pub")
    os.environ[signing.KEY_VARIABLE] = str(folder / "key.pem")
    for _ in range(100):
        signing.sign("run", {f"file {n}": "0" * 64 for n in range(20)})
    del os.environ[signing.KEY_VARIABLE]


def main() -> None:
    with benchmark() as (goals, folder):
        goals.at_most("sign a build", timed(lambda: sign(folder))[0] * 10, 50.0, "ms")
        log_large_build(folder, goals)
        list_runs(folder, goals)
        accept_engines(folder, goals)
        beginning, resuming = recovery(folder)
        goals.at_most("resume a killed campaign", resuming, beginning + 1.0, note=f"a new one takes {beginning:.2f} s")


if __name__ == "__main__":
    main()
