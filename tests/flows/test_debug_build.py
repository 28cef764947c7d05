"""Campaigns as flows, on a real Prefect server, a real MLflow store and real ONNX Runtime."""

from __future__ import annotations

import asyncio
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
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

from flows.debug_build import debug_build
from flows.diff_tactics import diff_tactics
from flows.promote import promote
from flows.prove import prove
from tests.campaigns import FAST, GELUS, config, two_blocks
from trtops import errors
from trtops.flows.campaigns import spread
from trtops.flows.slots import gpu_slot, limit_name, place_slot
from trtops.ops.campaign import workers
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.promote import resolve
from trtops.ops.campaign.workers import close_workers, devices_of, warm_backend
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tracking.schema import Tag
from trtops.tracking.store import default_tracker


@pytest.fixture
def case(tmp_path: Path) -> tuple[Path, DebugBuildConfig]:
    model, data = two_blocks(tmp_path)
    return model, config(data)


def test_campaign_is_diffed_proved_promoted_and_shown(store: Path, case) -> None:
    model, campaign = case

    result = debug_build(model, campaign, until=30, parallel=2)
    diffed = diff_tactics(runs=(result.run_id,))
    proved = prove(result.run_id, repeats=1)
    tracker = default_tracker()
    runs = tracker.find("blocks", parent=result.run_id)
    promoted = promote(next(info.id for info in runs if info.verdict == "good"))

    assert sorted(int(i.tags[Tag.ITERATION]) for i in runs if Tag.ITERATION in i.tags) == list(range(30))
    assert {(c.layer, c.choice) for c in result.found.confirmed[0].choices} == {(layer, FAST) for layer in GELUS}
    assert diffed.found == result.found
    assert proved.outcome == "confirmed"
    assert resolve(model, tracker=tracker).run_id == promoted.run_id
    # Every run of it leads to a flow run.
    assert tracker.info(result.run_id).tags[Tag.PREFECT_FLOW_RUN]
    assert all(info.tags[Tag.PREFECT_FLOW_RUN] for info in runs)
    artifacts = asyncio.run(_artifacts())
    bars = [a for a in artifacts if a.type == "progress"]
    assert bars[-1].data == 100.0
    pages = "\n".join(a.data for a in artifacts if a.type == "markdown")
    for words in (
        "confirmed",
        "## Plain set difference",
        "confirmed",
        "suspect put in",
        "accepted",
        promoted.alias,
    ):
        assert words in pages


async def _artifacts():  # type: ignore[no-untyped-def]
    async with get_client() as client:
        artifacts = await client.read_artifacts()
    return sorted(artifacts, key=lambda a: a.created)


def test_threads_build_in_children_of_their_own(store: Path, case, tmp_path: Path) -> None:
    model, campaign = case
    script = tmp_path / "slow.py"
    script.write_text(
        f"""
import os, sys, time
import numpy as np
def load_data():
    if os.getpid() != {os.getpid()}:
        with open({str(tmp_path / "calls")!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")
        while len(set(open({str(tmp_path / "calls")!r}))) < 2:  # until the other child is at work as well
            time.sleep(0.01)
    with np.load({campaign.check.data!r}) as feed:
        return [dict(feed)]
"""
    )
    slow = dataclasses.replace(campaign, check=dataclasses.replace(campaign.check, data=str(script)))

    debug_build(model, slow, until=4, parallel=2)

    assert len(set((tmp_path / "calls").read_text().splitlines())) == 2


def test_error_in_an_iteration_fails_the_campaign(store: Path, case) -> None:
    model, campaign = case
    broken = dataclasses.replace(campaign, calibration_cache="/nowhere", build=BuildConfig(precision="int8"))

    with pytest.raises(errors.ConfigError, match="nowhere"):
        debug_build(model, broken, until=2, parallel=2)

    [parent] = default_tracker().find("blocks", tags={Tag.KIND: "debug_build"})
    assert parent.status == "failed" and "nowhere" in parent.tags[Tag.ERROR]
    assert default_tracker().find(status="running") == []


def test_campaign_is_resumed_by_its_run(store: Path, case) -> None:
    model, campaign = case
    first = debug_build(model, campaign, until=2)

    again = debug_build(resume=first.run_id)
    more = debug_build(resume=first.run_id, max_iterations=150)

    assert again == first == more


def test_missing_dask_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    monkeypatch.setitem(sys.modules, "prefect_dask.task_runners", None)

    with pytest.raises(errors.BackendUnavailableError, match=r"trtops\[dask\]"), spread(1, "tcp://nowhere:1"):
        pass


# One build per GPU


def test_gpu_slot_is_held_by_one_thread() -> None:
    seen: list[str] = []

    @flow
    def two() -> None:
        def hold(name: str) -> None:
            with gpu_slot(("gpu-a",)):
                seen.append(f"{name} begins")
                time.sleep(0.3)
                seen.append(f"{name} ends")

        threads = [threading.Thread(target=hold, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    two()

    assert len(seen) == 4
    assert [line.split()[1] for line in seen] == ["begins", "ends", "begins", "ends"]
    with get_client(sync_client=True) as client:
        limit = client.read_global_concurrency_limit_by_name(limit_name("gpu-a"))
        assert (limit.limit, limit.active_slots) == (1, 0)


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
    with gpu_slot(()) as none:
        assert none is None


def test_campaign_takes_device_of_free_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_gpus", {"test-1": "gpu-e", "test-2": "gpu-f", "GPU-e": "gpu-e"})
    config = DebugBuildConfig(
        build=BuildConfig(options=TensorRTOptions()), devices=("test-1", "GPU-e", "test-2"), parallel=2
    )
    with (
        place_slot(config.place) as first,
        place_slot(config.place) as second,
        place_slot(DebugBuildConfig().place) as third,
    ):
        assert (first, second, third) == (("test-1",), ("test-2",), ())


def test_threads_share_one_child_per_gpu() -> None:
    def ask() -> None:
        assert workers.gpus_of("tensorrt", ("test-9",)) == {}

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(workers._idle["test-9"]) == 1
    close_workers()


def test_existing_limit_is_kept() -> None:
    name = limit_name("gpu-d")
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=2))

        with gpu_slot(("gpu-d",)), gpu_slot(("gpu-d",)):
            limit = client.read_global_concurrency_limit_by_name(name)

    assert (limit.limit, limit.active_slots) == (2, 2)


def test_device_is_held_by_one_builder() -> None:
    one = DebugBuildConfig(build=BuildConfig(options=TensorRTOptions()), devices=("test-7",))
    two = dataclasses.replace(one, devices=("test-7", "test-8"))
    free = threading.Event()
    came_when_free: list[bool] = []

    def wait() -> None:
        with warm_backend("tensorrt", one.devices):
            came_when_free.append(free.is_set())

    with warm_backend("tensorrt", one.devices) as first, warm_backend("tensorrt", two.devices) as second:
        assert first.worker.run(_visible) == "test-7"
        assert second.worker.run(_visible) == "test-8"
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.4)
        free.set()
    thread.join()
    assert came_when_free == [True]
    assert devices_of("onnxruntime", ("0",)) == () and devices_of("tensorrt", ("1", "2")) == ("1", "2")
    close_workers()


def _visible() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]
