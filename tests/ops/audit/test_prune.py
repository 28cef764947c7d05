"""What retention drops and what it keeps; and that an audit knows what was dropped."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.keys import new_key
from tests.servers import MlflowServer
from trtops import errors
from trtops.cli.main import main
from trtops.ops.auditing.config import AuditConfig
from trtops.ops.auditing.op import audit
from trtops.ops.auditing.prune import PruneConfig, prune_runs
from trtops.system import signing
from trtops.tracking.base import Tracker
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.embedded import ensure_store
from trtops.tracking.schema import Artifact, Tag
from trtops.verdict import Verdict

BIG = 1 << 16
RULE = PruneConfig(older_than_days=7, larger_than_bytes=1000, apply=True)


def later() -> float:
    return time.time() + 8 * 86400


def logged(tracker: Tracker, verdict: Verdict, **tags: str) -> str:
    run = tracker.start("many", f"a {verdict} run", kind="build", tags=tags)
    run.log_bytes(os.urandom(BIG), "engine/engine.ort")
    run.log_bytes(os.urandom(BIG), Artifact.TACTICS)
    run.log_text("small", "build.txt")
    run.finish(verdict)
    return run.id


@pytest.fixture(params=[MemoryTracker, MlflowTracker])
def tracker(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryTracker | MlflowTracker:
    return MemoryTracker() if request.param is MemoryTracker else MlflowTracker(tmp_path / "mlruns")


def test_large_artifacts_of_old_bad_runs_are_dropped(tracker) -> None:
    bad, good, needed = logged(tracker, "bad"), logged(tracker, "good"), logged(tracker, "bad")
    logged(tracker, "good", **{Tag.REUSED_FROM: needed})
    accepted = logged(tracker, "bad")
    tracker.register("model", accepted, "engine/engine.ort", alias="chosen")

    young = prune_runs(RULE, tracker=tracker)
    dry = prune_runs(PruneConfig(older_than_days=7, larger_than_bytes=1000), tracker=tracker, now=later)
    assert young.runs == () and not dry.applied and dry.bytes == BIG and "would be dropped" in dry.headline
    assert tracker.load(bad).read_bytes("engine/engine.ort")
    done = prune_runs(RULE, tracker=tracker, now=later)

    assert [run.id for run in done.runs] == [bad] and done.bytes == BIG and done.spared == 2
    assert [entry.path for entry in done.runs[0].artifacts] == ["engine/engine.ort"]
    with pytest.raises(errors.IncompleteRunError, match="removed to free space"):
        tracker.load(bad).read_bytes("engine/engine.ort")
    assert tracker.peek(bad, "engine/engine.ort") is None
    assert tracker.load(bad).read_bytes(Artifact.TACTICS) and tracker.load(bad).read_bytes("build.txt") == b"small"
    assert all(tracker.load(run).read_bytes("engine/engine.ort") for run in (good, needed, accepted))
    assert prune_runs(RULE, tracker=tracker, now=later).runs == ()


def test_gate_keeps_findings_and_drops_engine() -> None:
    tracker = MemoryTracker()
    run = tracker.start("many", "refused", kind="gate")
    for path in ("engine/engine.ort", Artifact.GATE, Artifact.REPORT_DATA, Artifact.ACCURACY):
        run.log_bytes(os.urandom(BIG), path)
    run.finish("bad")

    [pruned] = prune_runs(RULE, tracker=tracker, now=later).runs

    assert [entry.path for entry in pruned.artifacts] == ["engine/engine.ort"]


def test_audit_of_pruned_run_finds_changes(tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_key(tmp_path / "k.pem", tmp_path / "k.pub")
    monkeypatch.setenv(signing.KEY_VARIABLE, str(tmp_path / "k.pem"))
    run = logged(tracker, "bad")
    monkeypatch.delenv(signing.KEY_VARIABLE)  # dropping needs no key
    prune_runs(RULE, tracker=tracker, now=later)
    config = AuditConfig(runs=(run,), rebuild=False, keys=(str(tmp_path / "k.pub"),))

    [found] = audit(config, tracker=tracker).runs

    assert found.dropped == ("engine/engine.ort",) and found.signature
    assert found.whole and [c.text() for c in found.contradictions if "engine" not in c.what] == []
    manifest = tracker.load(run).manifest
    assert manifest.dropped[0].why == RULE.rule and manifest.dropped[0].artifact.size == BIG


def test_server_drops_artifacts(tmp_path: Path) -> None:
    ensure_store(tmp_path / "mlruns")
    with MlflowServer(tmp_path / "mlruns") as server:
        tracker = MlflowTracker(server.address)
        run = logged(tracker, "bad")
        done = prune_runs(RULE, tracker=tracker, now=later)
        [found] = audit(AuditConfig(runs=(run,), rebuild=False), tracker=MlflowTracker(server.address)).runs

    assert [each.id for each in done.runs] == [run] and found.whole
    assert found.dropped == ("engine/engine.ort",)
    assert not list(tmp_path.rglob("engine.ort")) and list(tmp_path.rglob("replay.json"))


def test_invalid_rule_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="0 or more"):
        PruneConfig(older_than_days=-1)


def test_command_is_a_dry_run_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = MlflowTracker(tmp_path / "mlruns")
    run = logged(tracker, "bad")
    line = ["runs", "prune", "--store", str(tmp_path / "mlruns"), "--older-than", "0", "--larger-than", "1K"]

    assert main(line) == 0
    assert "dry run" in capsys.readouterr().out and tracker.load(run).manifest.dropped == ()
    assert main([*line, "--apply"]) == 0
    assert tracker.load(run).manifest.dropped
