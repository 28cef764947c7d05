"""Campaigns as flows, on a real Prefect server, a real MLflow store and real ONNX Runtime."""

import contextvars
import dataclasses
import os
import sys
import threading
import time
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client

from flows.debug_build import debug_build, prove
from flows.diff_tactics import diff_tactics
from flows.store import promote
from tests.campaigns import config, two_blocks
from trtops import errors
from trtops.flows.campaigns import spread
from trtops.flows.slots import device_slot, gpu_slot, limit_name
from trtops.ops import devices
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.devices import devices_of, warm_backend
from trtops.ops.registry.accepted import resolve
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.system.worker import close_workers
from trtops.tracking.schema import Tag
from trtops.tracking.store import default_tracker


@pytest.fixture
def case(tmp_path: Path) -> tuple[Path, DebugBuildConfig]:
    model, data = two_blocks(tmp_path)
    return model, config(data)


def test_campaign_is_diffed_proved_promoted_and_shown(store: Path, case) -> None:
    model, campaign = case

    result = debug_build(model, campaign, until=8, parallel=2)
    diffed = diff_tactics(result.run_id)
    proved = prove(result.run_id, repeats=1)
    tracker = default_tracker()
    runs = tracker.find("blocks", parent=result.run_id)
    promoted = promote(next(info.id for info in runs if info.verdict == "good"))

    assert sorted(int(i.tags[Tag.ITERATION]) for i in runs if Tag.ITERATION in i.tags) == list(range(8))
    assert diffed.diff == result.diff
    assert proved.outcome == "confirmed"
    assert resolve(model, tracker=tracker).run_id == promoted.run_id
    # Every run of it leads to a flow run.
    assert tracker.info(result.run_id).tags[Tag.PREFECT_FLOW_RUN]
    assert all(info.tags[Tag.PREFECT_FLOW_RUN] for info in runs)
    with get_client(sync_client=True) as client:
        artifacts = sorted(client.read_artifacts(), key=lambda artifact: artifact.created)
    bars = [a for a in artifacts if a.type == "progress"]
    assert bars[-1].data == 100.0
    pages = "\n".join(a.data for a in artifacts if a.type == "markdown")
    for words in ("confirmed", "## Plain set difference", "suspect put in", "accepted", promoted.alias):
        assert words in pages


@pytest.mark.usefixtures("children")
def test_threads_build_in_children_of_their_own(store: Path, case, tmp_path: Path) -> None:
    model, campaign = case
    calls, script = tmp_path / "calls", tmp_path / "slow.py"
    # Each child waits until another one is at work as well.
    script.write_text(
        f"""
import os, time
import numpy as np
def load_data():
    if os.getpid() != {os.getpid()}:
        with open({str(calls)!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")
        while len(set(open({str(calls)!r}))) < 2:
            time.sleep(0.01)
    with np.load({campaign.check.data!r}) as feed:
        return [dict(feed)]
"""
    )

    debug_build(model, campaign, data=str(script), until=4, parallel=2)

    assert len(set(calls.read_text().splitlines())) == 2


def test_error_in_an_iteration_fails_the_campaign(store: Path, case) -> None:
    model, campaign = case
    broken = dataclasses.replace(campaign, calibration_cache="/nowhere", build=BuildConfig(precision="int8"))

    with pytest.raises(errors.ConfigError, match="nowhere"):
        debug_build(model, broken, until=2, parallel=2)
    [parent] = default_tracker().find("blocks", tags={Tag.KIND: "debug_build"})
    assert parent.status == "failed" and "nowhere" in parent.tags[Tag.ERROR]
    assert default_tracker().find(status="running") == []


def test_missing_dask_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    monkeypatch.setitem(sys.modules, "prefect_dask.task_runners", None)

    with pytest.raises(errors.BackendUnavailableError, match=r"trtops\[dask\]"), spread(1, "tcp://nowhere:1"):
        pass


TRT = BuildConfig(options=TensorRTOptions())


def test_free_gpu_of_two_is_taken() -> None:
    took: list[str | None] = []

    def third() -> None:
        with gpu_slot(("gpu-b", "gpu-c")) as gpu:
            took.append(gpu)

    @flow
    def three() -> None:
        with gpu_slot(("gpu-c",)):
            with gpu_slot(("gpu-b", "gpu-c")) as gpu:
                took.append(gpu)
                waiting = threading.Thread(target=contextvars.copy_context().run, args=(third,))
                waiting.start()
                time.sleep(1.5)
                assert took == ["gpu-b"]
            waiting.join()

    three()

    assert took == ["gpu-b", "gpu-b"]
    with gpu_slot(()) as none, get_client(sync_client=True) as client:
        assert none is None
        limit = client.read_global_concurrency_limit_by_name(limit_name("gpu-b"))
        assert (limit.limit, limit.active_slots) == (1, 0)


def test_campaign_takes_device_of_free_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_gpus", {"test-1": "gpu-e", "test-2": "gpu-f", "GPU-e": "gpu-e"})
    where = DebugBuildConfig(build=TRT, devices=("test-1", "GPU-e", "test-2"), parallel=2).place
    with device_slot(where) as first, device_slot(where) as second, device_slot(DebugBuildConfig().place) as third:
        assert (first, second, third) == (("test-1",), ("test-2",), ())


def test_device_is_held_by_one_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_gpus", {"test-7": "gpu-7", "test-8": "gpu-8"})
    free, came_when_free = threading.Event(), list[bool]()

    def wait() -> None:
        with warm_backend("tensorrt", ("test-7",)):
            came_when_free.append(free.is_set())

    with warm_backend("tensorrt", ("test-7",)) as first, warm_backend("tensorrt", ("test-7", "test-8")) as second:
        assert first.worker.run(os.getenv, "CUDA_VISIBLE_DEVICES") == "test-7"
        assert second.worker.run(os.getenv, "CUDA_VISIBLE_DEVICES") == "test-8"
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.4)
        free.set()
    thread.join()
    assert came_when_free == [True]
    assert devices_of("onnxruntime", ("0",)) == () and devices_of("tensorrt", ("1", "2")) == ("1", "2")
    close_workers()
