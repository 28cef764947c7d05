"""Heartbeats: any host sees that a run's process has ended; such runs can be closed and resumed."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.waiting import until
from trtops import errors
from trtops.cli.main import main
from trtops.tracking import heartbeat, owner
from trtops.tracking.base import RunInfo
from trtops.tracking.check import close, reap
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.run import MlflowRun
from trtops.tracking.schema import Tag

ELSEWHERE = replace(owner.current(), host="elsewhere", machine="another", boot="another", pid=7)


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> MlflowTracker:
    return MlflowTracker(tmp_path_factory.mktemp("heart") / "mlruns")


def left_by(tracker: MlflowTracker, whose: owner.Owner, silent: float, kind: str = "build", **more: str) -> RunInfo:
    """A run that a process started and has been silent about for some seconds."""
    tags = {Tag.OWNER: whose.to_json(indent=None), Tag.HEARTBEAT: str(int(time.time() - silent))}
    return tracker.info(tracker.start("m", "r", kind=kind, tags=tags, **more).id)  # type: ignore[arg-type]


def test_remote_process_without_heartbeat_is_dead(tracker: MlflowTracker) -> None:
    alive = left_by(tracker, ELSEWHERE, silent=owner.SILENT_SECONDS / 2)
    dead = left_by(tracker, ELSEWHERE, silent=2 * owner.SILENT_SECONDS)
    here = left_by(tracker, owner.current(), silent=2 * owner.SILENT_SECONDS)  # busy, and there to be seen

    assert [owner.is_abandoned(info) for info in (alive, dead, here)] == [False, True, False]
    assert [info.id for info in reap(tracker)] == [dead.id]
    for info in (alive, here):
        tracker.close(info.id, "")


def test_run_of_silent_container_is_resumed(tracker: MlflowTracker) -> None:
    busy = left_by(tracker, replace(ELSEWHERE, host="here"), silent=10)
    with pytest.raises(errors.LogError, match=r"process 7 on here.*heartbeat was 1\d s ago.*runs close .* --force"):
        tracker.reopen(busy.id)
    silent = left_by(tracker, replace(owner.current(), namespace="pid:[1]"), silent=2 * owner.SILENT_SECONDS)

    again = tracker.reopen(silent.id)

    assert owner.Owner.from_json(tracker.info(silent.id).tags[Tag.OWNER]) == owner.current()
    again.finish("good")
    tracker.close(busy.id, "")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(heartbeat, "heartbeats", {})
    yield
    gc.collect()


def started(tracker: MlflowTracker) -> MlflowRun:
    """A run whose start is long ago."""
    run = tracker.start("m", "beating", kind="build")
    tracker._client.set_tag(run.id, Tag.HEARTBEAT, "1")
    return run


def test_heartbeat_stops_at_the_end(tracker: MlflowTracker, quick: None) -> None:
    run = started(tracker)
    until(lambda: tracker.info(run.id).tags[Tag.HEARTBEAT] != "1")

    run.finish("good")

    tracker._client.set_tag(run.id, Tag.HEARTBEAT, "1")
    until(lambda: heartbeat.heartbeats[os.getpid()].thread is None)
    assert (tracker.info(run.id).tags[Tag.HEARTBEAT], tracker.info(run.id).status) == ("1", "finished")


def test_live_process_recovers_its_closed_run(tracker: MlflowTracker) -> None:
    run = tracker.start("m", "r", kind="build")
    tracker.close(run.id, "Nothing was heard of it.")

    assert run.beat()

    assert tracker.info(run.id).status == "running" and Tag.ERROR not in tracker.info(run.id).tags
    run.finish("good")
    assert not run.beat() and tracker.info(run.id).status == "finished"


def test_closed_run_gets_no_heartbeat(tracker: MlflowTracker, quick: None) -> None:
    first, other = started(tracker), started(tracker)
    tracker.close(first.id, "gone")
    tracker.reopen(first.id).finish()
    until(lambda: tracker.info(other.id).tags[Tag.HEARTBEAT] != "1")  # by then the first one would have beaten too

    assert tracker.info(first.id).status == "finished"
    assert not first.beat() and tracker.info(first.id).status == "finished"
    other.finish()


def test_resumed_run_rejects_its_former_process(tracker: MlflowTracker) -> None:
    run = tracker.start("m", "r", kind="build")
    tracker._client.set_tag(run.id, Tag.OWNER, ELSEWHERE.to_json(indent=None))

    assert not run.beat()

    for write in (
        lambda: run.log_params({"a": 1}),
        lambda: run.set_tags({"a": "1"}),
        lambda: run.log_bytes(b"", "a"),
        lambda: run.finish("good"),
    ):
        with pytest.raises(errors.LogError, match="resumed by process 7 on elsewhere"):
            write()
    run.fail("lost")
    assert tracker.info(run.id).status == "running"  # the other's affair
    tracker.close(run.id, "")


def test_heartbeat_survives_an_outage(tracker: MlflowTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tracker.start("m", "r", kind="build")

    def away(run_id: str) -> None:
        raise ConnectionError("away")

    with monkeypatch.context() as context:
        context.setattr(run._connection.client, "get_run", away)
        assert run.beat()
    assert run.beat()
    run.finish("good")


def test_close_command_needs_force_for_live_runs(
    tracker: MlflowTracker, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = ["--store", str(tracker.store.root)]
    campaign = left_by(tracker, ELSEWHERE, silent=1, kind="debug_build")
    lost = left_by(tracker, ELSEWHERE, silent=1, kind="iteration", parent=campaign.id)

    assert main(["runs", "close", campaign.id[:12], *store]) == 3
    assert "process 7 on elsewhere, which may still be writing it" in caplog.text
    assert main(["runs", "close", campaign.id, "--force", "--why", "given back", *store]) == 0

    said = capsys.readouterr().out
    assert f"{campaign.id} killed r" in said and f"{lost.id} killed r" in said
    assert tracker.info(campaign.id).tags[Tag.ERROR] == "given back"
    assert main(["runs", "close", campaign.id, *store]) == 3
    assert "has ended: it is killed" in caplog.text
    tracker.reopen(campaign.id).finish("good")


def test_close_leaves_live_children(tracker: MlflowTracker) -> None:
    campaign = left_by(tracker, ELSEWHERE, silent=2 * owner.SILENT_SECONDS, kind="debug_build")
    busy = left_by(tracker, ELSEWHERE, silent=1, kind="iteration", parent=campaign.id)

    assert [info.id for info in close(tracker, campaign.id)] == [campaign.id]

    assert tracker.info(busy.id).status == "running"
