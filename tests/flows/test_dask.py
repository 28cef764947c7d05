"""A campaign on Dask: a worker is killed half-way, and every iteration is stored once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from flows.debug_build import debug_build
from tests import models
from trtops import errors
from trtops.flows.dask import check_workers, dask_runner
from trtops.ops.campaign.config import Campaign, DebugBuildConfig
from trtops.ops.campaign.debug_build import DebugBuildResult, Progress
from trtops.ops.campaign.debug_build import debug_build as debug_build_op
from trtops.ops.campaign.iteration import IterationResult, iterate_once
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking import owner
from trtops.tracking.check import reap
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.owner import Owner
from trtops.tracking.schema import Tag
from trtops.tracking.store import default_tracker

pytest.importorskip("prefect_dask")
import dask
from distributed import LocalCluster
from prefect.settings import PREFECT_API_URL, temporary_settings

BUILDS = 40 if os.environ.get("TRTOPS_TEST_KILLS") == "1" else 8

DATA = """
import os, signal
import numpy as np
def load_data():
    with open({calls!r}, "ab") as file:
        file.write(b"x")
        call = file.tell()
    if call == {fatal}:  # in the child that builds: its parent, the Dask worker, dies in the middle of an iteration
        os.kill(os.getppid(), signal.SIGKILL)
    return [dict(x=np.ones((1, 1, 2, 2), np.float32))]
"""


@pytest.fixture
def case(tmp_path: Path) -> tuple[Path, DebugBuildConfig]:
    script = tmp_path / "data.py"
    # The first call is the campaign's own, for the golden outputs.
    script.write_text(DATA.format(calls=str(tmp_path / "calls"), fatal=1 + BUILDS // 2))
    return models.identity().write(tmp_path), DebugBuildConfig(
        build=BuildConfig(options=OnnxRuntimeOptions(timing_iterations=1, intra_op_threads=1)),
        check=CheckConfig(data=str(script), plots="never", latency_runs=0),
        random_tactics=True,
        until=BUILDS,
        keep_model=False,
        parallel=2,
    )


def check_campaign(result: DebugBuildResult) -> None:
    """All iterations are whole and stored once; the one that was lost with its worker is closed."""
    tracker = default_tracker()
    reap(tracker)
    runs = tracker.find("identity", parent=result.run_id)
    whole = [info for info in runs if info.status == "finished"]
    lost = [info for info in runs if info.status != "finished"]
    assert sorted(int(info.tags[Tag.ITERATION]) for info in whole) == list(range(BUILDS))
    assert [(info.status, "process ended" in info.tags[Tag.ERROR]) for info in lost] == [("killed", True)]
    for info in whole:
        stored = tracker.load(info.id)
        for entry in stored.manifest.artifacts:
            stored.read_bytes(entry.path)
    owners = {Owner.from_json(info.tags[Tag.OWNER]).pid for info in runs}
    assert os.getpid() not in owners and len(owners) >= 2
    assert (result.iterations, result.good, tracker.info(result.run_id).status) == (BUILDS, BUILDS, "finished")


def test_campaign_survives_killed_worker_of_local_cluster(store: Path, case) -> None:
    model, campaign = case

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        result = debug_build(model, campaign, dask=cluster.scheduler_address)

    check_campaign(result)


def test_repeated_iteration_is_made_once(case) -> None:
    model, campaign = case
    memory = MemoryTracker()
    seen: list[Campaign] = []

    def make(of: Campaign, number: int) -> Future[IterationResult]:
        seen.append(of)
        first, second = (iterate_once(of, number, tracker=memory) for _ in range(2))
        assert dataclasses.replace(second, reasons=first.reasons) == first
        future: Future[IterationResult] = Future()
        future.set_result(second)
        return future

    result = debug_build_op(model, dataclasses.replace(campaign, until=2, parallel=1), tracker=memory, submit=make)

    runs = memory.find("identity", parent=result.run_id)
    assert len(runs) == 2 and result.iterations == 2


def test_iteration_of_lost_worker_is_closed(case) -> None:
    model, campaign = case
    memory = MemoryTracker()
    gone = dataclasses.replace(owner.current(), pid=2**22 + 1, started=1).to_json()

    def stop(now: Progress) -> None:
        [parent] = memory.find("identity", tags={Tag.KIND: "debug_build"})
        tags = {Tag.ITERATION: "1", Tag.OWNER: gone}
        if now.done == 1:
            memory.start("identity", "iteration 1", kind="iteration", tags=tags, parent=parent.id)

    def make(of: Campaign, number: int) -> Future[IterationResult]:
        future: Future[IterationResult] = Future()
        future.set_result(iterate_once(of, number, tracker=memory))
        return future

    config = dataclasses.replace(campaign, until=2, parallel=1)
    result = debug_build_op(model, config, tracker=memory, submit=make, progress=stop)

    runs = memory.find("identity", parent=result.run_id)
    assert sorted(info.status for info in runs) == ["finished", "finished", "killed"]
    assert "handed out again" in next(info.tags[Tag.ERROR] for info in runs if info.status == "killed")


def test_missing_scheduler_is_named(store: Path, case, monkeypatch: pytest.MonkeyPatch) -> None:
    model, campaign = case
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(errors.ConfigError, match=r"tcp://127\.0\.0\.1:9"),
    ):
        debug_build(model, campaign, dask="tcp://127.0.0.1:9")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster of one worker, for what is asked of workers before any work."""
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster


def test_unfit_workers_are_refused(store: Path, cluster: LocalCluster, tmp_path: Path) -> None:
    run = default_tracker().start("m", "campaign", kind="debug_build")
    with dask_runner(cluster.scheduler_address) as runner:
        runner.client.run(use_store, str(store))
        check_workers(runner.client, run.id)  # they got the address of the flow's own server

        runner.client.run(use_store, str(tmp_path / "other"))
        with pytest.raises(errors.ConfigError, match=r"runs go to .*other/mlflow\.db"):
            check_workers(runner.client, run.id)
        runner.client.run(use_store, str(store))
        with (
            temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
            pytest.raises(errors.ConfigError, match=r"does not reach the Prefect server http://127\.0\.0\.1:9/api"),
        ):
            check_workers(runner.client, run.id)
    run.finish()


def use_store(folder: str) -> None:
    os.environ["TRTOPS_HOME"] = folder
