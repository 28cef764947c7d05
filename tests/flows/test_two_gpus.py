"""Campaigns that build on two GPUs at a time, on real TensorRT, with a real Prefect server and a real MLflow store."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prefect.client.orchestration import get_client

from flows.convert import convert
from flows.debug_build import debug_build
from tests import models
from tests.flows.test_convert_gpu import CHECK, FP16, QUICK, SHAPE, convolutions
from trtops.comparator.report import Tolerances
from trtops.flows.slots import limit_name
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.tracking.base import RunInfo
from trtops.tracking.schema import DEVICE_STATE, Tag
from trtops.tracking.store import default_tracker

pytestmark = pytest.mark.multi_gpu

UUID = DEVICE_STATE + "uuid_sha256"


def test_campaign_uses_both_gpus(store: Path, tmp_path: Path) -> None:
    model, other = convolutions(tmp_path, "convolutions"), convolutions(tmp_path, "other", seed=5)
    np.savez(tmp_path / "feed.npz", x=models.random(*SHAPE, seed=9))
    check = replace(CHECK, data=str(tmp_path / "feed.npz"), latency_runs=0, tolerances=Tolerances(atol=1e9))
    config = DebugBuildConfig(
        build=FP16, check=check, random_tactics=True, timeout_seconds=120.0, parallel=3, devices=("0", "1")
    )
    tracker = default_tracker()
    with get_client(sync_client=True) as client:  # the server is started once, not by both at the same time
        client.api_healthcheck()
    with ThreadPoolExecutor(1) as pool:
        converted = pool.submit(convert, other, QUICK)
        campaign = debug_build(model, config, until=8)

    iterations = tracker.find("convolutions", parent=campaign.run_id, tags={Tag.KIND: "iteration"})
    gpus = {info.params[UUID] for info in iterations}
    assert (campaign.iterations, campaign.errors) == (8, 0) and len(gpus) == 2
    for gpu in gpus:
        on_it = [info for info in iterations if info.params[UUID] == gpu]
        assert not any(_overlap(a, b) for a in on_it for b in on_it if a.id < b.id)
    assert any(_overlap(a, b) for a in iterations for b in iterations if a.params[UUID] != b.params[UUID])
    ours = tracker.info(converted.result().run_id)
    assert ours.verdict == "good"
    assert not any(_overlap(ours, info) for info in iterations if info.params[UUID] == ours.params[UUID])
    with get_client(sync_client=True) as client:
        limits = [client.read_global_concurrency_limit_by_name(limit_name(gpu)) for gpu in sorted(gpus)]
    assert [(limit.limit, limit.active_slots) for limit in limits] == [(1, 0), (1, 0)]


def _overlap(first: RunInfo, second: RunInfo) -> bool:
    assert first.end_time is not None and second.end_time is not None
    return first.start_time < second.end_time and second.start_time < first.end_time
