"""A campaign on Dask: a worker is killed half-way, and every iteration is stored once."""

import importlib.util
import os
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from flows.debug_build import debug_build
from tests import models
from tests.campaigns import of_one_node
from trtops import errors
from trtops.ops.campaign.config import Campaign, DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build as debug_build_op
from trtops.ops.campaign.iteration import CampaignBuild, iterate_once
from trtops.ops.evaluation.check import CheckConfig
from trtops.tracking.check import reap
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.owner import Owner
from trtops.tracking.schema import Tag
from trtops.tracking.store import default_tracker

pytestmark = pytest.mark.skipif(importlib.util.find_spec("prefect_dask") is None, reason="needs prefect-dask")

KILLS = os.environ.get("TRTOPS_TEST_KILLS") == "1"
BUILDS = 40

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
    check = CheckConfig(data=str(script), plots="never", latency_runs=0)
    return models.identity().write(tmp_path), replace(of_one_node(BUILDS), check=check, parallel=2)


def test_iterations_run_on_the_cluster(store: Path, case) -> None:
    from distributed import LocalCluster

    model, campaign = case
    campaign = replace(campaign, check=replace(campaign.check, data=None), until=2)  # no process is killed
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        result = debug_build(model, campaign, dask=cluster.scheduler_address)
        [ran] = cluster.scheduler.task_prefixes.values()

    runs = default_tracker().find("identity", parent=result.run_id)
    assert ran.state_counts["memory"] + ran.state_counts["released"] + ran.state_counts["forgotten"] >= 2
    assert [info.status for info in runs] == ["finished"] * 2 and result.good == 2


@pytest.mark.skipif(not KILLS, reason="TRTOPS_TEST_KILLS=1 runs it")
def test_campaign_survives_killed_worker_of_local_cluster(store: Path, case, tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    model, campaign = case
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        result = debug_build(model, campaign, dask=cluster.scheduler_address)
        with Client(cluster) as client:
            client.run(use_store, str(tmp_path / "other"))
        with pytest.raises(errors.ConfigError, match=r"logs to .*other/mlflow\.db, not to the store of this flow"):
            debug_build(model, campaign, dask=cluster.scheduler_address, experiment="elsewhere")

    tracker = default_tracker()
    reap(tracker)
    runs = tracker.find("identity", parent=result.run_id)
    whole = [info for info in runs if info.status == "finished"]
    [lost] = [info for info in runs if info.status != "finished"]
    assert sorted(int(info.tags[Tag.ITERATION]) for info in whole) == list(range(BUILDS))
    assert lost.status == "killed" and "process ended" in lost.tags[Tag.ERROR]
    for stored in (tracker.load(info.id) for info in whole):
        for entry in stored.manifest.artifacts:
            stored.read_bytes(entry.path)
    owners = {Owner.read(info.tags[Tag.OWNER]).pid for info in runs}
    assert os.getpid() not in owners and len(owners) >= 2
    assert (result.iterations, result.good, tracker.info(result.run_id).status) == (BUILDS, BUILDS, "finished")


def test_repeated_iteration_is_made_once(case) -> None:
    model, campaign = case
    campaign = replace(campaign, check=replace(campaign.check, data=None))  # no process is killed
    memory = MemoryTracker()
    seen: list[Campaign] = []

    def make(of: Campaign, number: int) -> Future[CampaignBuild]:
        seen.append(of)
        first, second = (iterate_once(of, number, tracker=memory) for _ in range(2))
        assert replace(second, reasons=first.reasons) == first
        future: Future[CampaignBuild] = Future()
        future.set_result(second)
        return future

    result = debug_build_op(model, replace(campaign, until=2, parallel=1), tracker=memory, submit=make)

    runs = memory.find("identity", parent=result.run_id)
    assert len(runs) == 2 and result.iterations == 2


def test_unusable_cluster_fails_the_flow(store: Path, case) -> None:
    import dask

    model, campaign = case
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(errors.ConfigError, match=r"tcp://127\.0\.0\.1:9"),
    ):
        debug_build(model, campaign, dask="tcp://127.0.0.1:9")


def use_store(folder: str) -> None:
    os.environ["TRTOPS_HOME"] = folder  # a pickled os.environ would be a copy
