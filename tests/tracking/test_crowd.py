"""Eight processes log builds at once, into one server and into one embedded store: all whole, none lost.

Ten each, and fifty with `TRTOPS_TEST_LONG=1`: what they disturb each other by shows in the first seconds.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path

import pytest

from tests.amounts import amount
from tests.forking import ForkedProcess
from trtops.record import sha256
from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker

PROCESSES, BUILDS = 8, amount(50, in_every_run=10)

fork = multiprocessing.get_context("fork")


def log_builds(location: str, process: int) -> None:
    tracker = MlflowTracker(location)
    for build in range(BUILDS):
        with tracked(tracker, "crowd", f"{process} {build}", kind="build", tags={"process": str(process)}) as run:
            run.log_params({"process": process, "build": build})
            run.log_metrics({("build", "seconds"): float(build), ("error", "y", "max_abs"): process / 8})
            run.log_bytes(content(process, build), "engine/engine.ort")
            run.finish("good" if build % 2 else "bad")


def content(process: int, build: int) -> bytes:
    return b"%d of %d" % (build, process)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["server", "embedded"])
def test_eight_processes_log_builds_at_once(
    place: str, request: pytest.FixtureRequest, server_root: Path, new_store, tmp_path: Path
):
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - the children have it ready and so really meet

    root = server_root if place == "server" else new_store(tmp_path / "mlruns")
    location = request.getfixturevalue("server") if place == "server" else str(root)

    children = [ForkedProcess(target=log_builds, args=(location, process)) for process in range(PROCESSES)]
    for child in children:
        child.start()
    for child in children:
        child.join()

    assert [child.exitcode for child in children] == [0] * PROCESSES
    tracker = MlflowTracker(root)  # each file through a server would take a request
    runs = tracker.find("crowd")
    assert Counter(info.status for info in runs) == {"finished": PROCESSES * BUILDS}
    assert {info.name for info in runs} == {f"{p} {b}" for p in range(PROCESSES) for b in range(BUILDS)}
    for info in runs:
        process, build = map(int, info.name.split())
        assert info.params == {"process": str(process), "build": str(build)}
        assert info.metrics == {("build", "seconds"): float(build), ("error", "y", "max_abs"): process / 8}
        assert info.verdict == ("good" if build % 2 else "bad")
        stored = tracker.load(info.id)
        [entry] = stored.manifest.artifacts
        assert (entry.path, entry.sha256) == ("engine/engine.ort", sha256(content(process, build)))
        assert stored.read_bytes(entry.path) == content(process, build)
