"""A campaign that was killed under one host name is resumed under another, as containers have them."""

from __future__ import annotations

import os
import platform
import signal
from pathlib import Path

import pytest

from tests import models
from tests.forking import ForkedProcess
from trtops import errors
from trtops.cli.main import main
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import CampaignProgress, debug_build
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Tag

BUILDS = 3
CONFIG = DebugBuildConfig(
    build=BuildConfig(options=OnnxRuntimeOptions(timing_iterations=1, intra_op_threads=1)),
    check=CheckConfig(plots="never", latency_runs=0),
    random_tactics=True,
    until=BUILDS,
    keep_model=False,
)


@pytest.fixture
def left(tmp_path: Path) -> tuple[MlflowTracker, str]:
    """A campaign that was killed in its second iteration on another host."""
    tracker = MlflowTracker(tmp_path / "mlruns")
    model = models.identity().write(tmp_path)

    def live_and_die() -> None:
        platform.node = lambda: "container-1"

        def die(now: CampaignProgress) -> None:
            if now.done == 1:
                [campaign] = tracker.find("identity", tags={Tag.KIND: "debug_build"})
                tracker.start(
                    "identity", "iteration 1", kind="iteration", parent=campaign.id, tags={Tag.ITERATION: "1"}
                )
                os.kill(os.getpid(), signal.SIGKILL)

        debug_build(model, CONFIG, tracker=tracker, progress=die)

    child = ForkedProcess(target=live_and_die)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    [campaign] = tracker.find("identity", tags={Tag.KIND: "debug_build"})
    assert (campaign.status, campaign.tags[Tag.HOST]) == ("running", "container-1")
    with pytest.raises(errors.LogError, match=r"on container-1.*trtops runs close"):
        debug_build(resume=campaign.id, tracker=tracker)
    return tracker, campaign.id


def resumed(tracker: MlflowTracker, campaign: str) -> None:
    """Resume the campaign; all of its builds are there, once."""
    result = debug_build(resume=campaign, tracker=tracker)

    assert (result.iterations, result.good) == (BUILDS, BUILDS)
    runs = tracker.find("identity", parent=campaign)
    whole = [info for info in runs if info.status == "finished"]
    assert sorted(info.tags[Tag.ITERATION] for info in whole) == [str(number) for number in range(BUILDS)]
    assert [(info.status, info.tags[Tag.ITERATION]) for info in runs if info not in whole] == [("killed", "1")]
    assert tracker.info(campaign).status == "finished" and tracker.find(status="running") == []


def test_closed_campaign_is_resumed_at_once(left: tuple[MlflowTracker, str]) -> None:
    tracker, campaign = left

    assert main(["runs", "close", campaign, "--force", "--store", str(tracker.store.root)]) == 0

    resumed(tracker, campaign)
