"""Campaigns whose MLflow server goes away: for a while, and for good. In the end the same runs are there."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns import config, two_blocks
from tests.servers import MlflowServer
from tests.tracking.test_offline import GatedTracker, come_back, go_away
from trtops.cli.main import main
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import CampaignProgress, DebugBuildResult, debug_build
from trtops.tracking import store
from trtops.tracking.base import Tracker
from trtops.tracking.campaigns import load_table
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker, embedded
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.schema import Tag
from trtops.tracking.spool import Spool, upload

BUILDS = 4


@pytest.fixture
def case(tmp_path: Path) -> tuple[Path, DebugBuildConfig]:
    model, data = two_blocks(tmp_path)
    return model, config(data, until=BUILDS, keep_model=False)


@pytest.fixture
def undisturbed(case: tuple[Path, DebugBuildConfig]) -> tuple[DebugBuildResult, object]:
    model, campaign = case
    memory = MemoryTracker()
    result = debug_build(model, campaign, tracker=memory)
    return result, what_is_kept(memory, result.run_id)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MlflowServer]:
    root = tmp_path / "server" / "mlruns"
    embedded.ensure_store(root)
    with MlflowServer(root) as server:
        yield server


@pytest.fixture
def tracker(server: MlflowServer, tmp_path: Path) -> OfflineTracker:
    return OfflineTracker(MlflowTracker(server.address), Spool(tmp_path / "spool"))


def what_is_kept(tracker: Tracker, campaign: str) -> object:
    """What a campaign left: its verdict and its iterations', with params, tactics and the parts that every build has
    alike."""
    parent = tracker.load(campaign)
    runs = {}
    for info in tracker.find(parent.info.experiment, parent=campaign):
        stored = tracker.load(info.id)
        assert info.tags[Tag.ITERATION] not in runs
        runs[info.tags[Tag.ITERATION]] = (
            info.status,
            info.verdict,
            {name: value for name, value in info.params.items() if name != "golden_sha256"},
            len(json.loads(stored.read_bytes("tactics/layers.json"))),
            stored.read_bytes("tactics/replay.json"),
            [entry.path for entry in stored.manifest.artifacts],
        )
        for entry in stored.manifest.artifacts:
            stored.read_bytes(entry.path)
    return parent.info.status, parent.info.verdict, [entry.path for entry in parent.manifest.artifacts], runs


@pytest.mark.parametrize("random_tactics", [False, True])
def test_campaign_of_an_absent_store_is_whole(random_tactics: bool, tmp_path: Path) -> None:
    model, data = two_blocks(tmp_path)
    options: dict[str, Any] = {"until": "decided", "max_iterations": 6, "random_tactics": True}
    campaign = config(data, keep_model=False, **(options if random_tactics else {"until": 2}))
    memory = GatedTracker()
    go_away(memory)
    offline = OfflineTracker(memory, Spool(tmp_path / "spool"))

    result = debug_build(model, campaign, tracker=offline, experiment="away")

    assert result.good and (result.bisections if random_tactics else result.good + result.bad == 2)
    come_back(memory)
    assert [uploaded.reason for uploaded in upload(memory, offline.spool) if uploaded.reason] == []
    builds = [info for info in memory.find() if info.kind == "iteration"]
    assert {info.verdict for info in builds} <= {"good", "bad"}
    assert {info.status for info in memory.find()} == {"finished"} and len(builds) >= result.good + result.bad
    [campaign_run] = [info for info in memory.find() if info.kind == "debug_build"]
    assert load_table(memory, campaign_run.id).names and memory.load(campaign_run.id).info.verdict is not None


def test_outages_are_waited_for_or_spooled(
    case, undisturbed, server: MlflowServer, tracker: OfflineTracker, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("TRTOPS_TRACKING_WAIT", "3600")
    monkeypatch.setenv("TRTOPS_SPOOL", str(tracker.spool.folder))
    model, campaign = case
    restart = threading.Thread(target=server.start)

    def upload() -> tuple[int, str]:
        store._open_once.cache_clear()  # each command is a process of its own
        capsys.readouterr()
        return main(["store", "upload", "--root", server.address]), capsys.readouterr().out

    def go_away(progress: CampaignProgress) -> None:
        if progress.done == 1:
            server.kill()
            restart.start()
        if progress.done == 2:
            restart.join()
            assert tracker.spool.runs() == []
            monkeypatch.setenv("TRTOPS_TRACKING_WAIT", "0")
            server.kill()

    result = debug_build(model, campaign, tracker=tracker, experiment="away", progress=go_away)

    spooled = tracker.spool.runs()
    assert len(spooled) == 1 + (BUILDS - 2)  # the campaign, and each iteration that the server missed
    assert (result.good, result.bad) == (undisturbed[0].good, undisturbed[0].bad)
    assert upload()[0] == 3  # it is still away, and nothing is lost by asking
    assert len(tracker.spool.runs()) == len(spooled)

    server.start()
    (done, output), again = upload(), upload()

    assert (done, output.splitlines()[0]) == (0, f"{len(spooled)} runs uploaded, 0 left.")
    assert again == (0, "0 runs uploaded, 0 left.\n")
    fresh = MlflowTracker(server.address)
    assert what_is_kept(fresh, result.run_id) == undisturbed[1]
    assert fresh.find(status="running") == [] and len(fresh.find(result.experiment)) == 1 + BUILDS
    names = load_table(fresh, result.run_id).names  # some are the ids that the runs had while they were kept
    assert len(names) == BUILDS
    assert {fresh.load(name).info.parent for name in names} == {result.run_id}
