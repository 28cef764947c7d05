"""Which engines retention deletes, and that an audit still passes and rebuilds."""

import os
import signal
from pathlib import Path

import pytest

from tests.ops.audit.conftest import Logged
from trtops import errors
from trtops.cli.main import main
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.auditing.prune import prune_runs
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Artifact, Tag

ENGINE = "engine/engine.ort"


def logged_run(tracker, kind: str = "build", **tags: str) -> str:
    run = tracker.start("many", "a run", kind=kind, tags=tags)
    for path in (ENGINE, Artifact.ENGINE_OPTIONS, Artifact.TACTICS):
        run.log_bytes(os.urandom(1000), path)
    run.finish("good")
    return run.id


def test_only_unneeded_engines_are_deleted(tmp_path: Path) -> None:
    tracker = MlflowTracker(tmp_path / "mlruns")
    old, evidence, reused = (logged_run(tracker) for _ in range(3))
    accepted = logged_run(tracker)
    needed = [evidence, reused, accepted, logged_run(tracker, "promote"), logged_run(tracker, "compare")]
    tracker.register("model", accepted, ENGINE, alias="chosen", tags={Tag.EVIDENCE: evidence})
    later = logged_run(tracker, **{Tag.REUSED_FROM: reused})

    assert not prune_runs(tracker=tracker, older_than_days=1, apply=True).engines
    dry = prune_runs(tracker=tracker, older_than_days=0)
    assert set(dry.engines) == {old, later} and "dry run" in dry.page()
    assert tracker.load(old).read_bytes(ENGINE)

    assert prune_runs(tracker=tracker, older_than_days=0, apply=True).engines == dry.engines
    stored = tracker.load(old)
    assert [entry.path for entry in stored.manifest.dropped] == [ENGINE]
    assert len(stored.read_bytes(Artifact.TACTICS)) == len(stored.read_bytes(Artifact.ENGINE_OPTIONS)) == 1000
    assert all(tracker.load(run).read_bytes(ENGINE) for run in needed)
    assert not prune_runs(tracker=tracker, older_than_days=0, apply=True).engines
    with pytest.raises(errors.ConfigError, match="0 or more"):
        prune_runs(tracker=tracker, older_than_days=-1)


def test_pruned_run_passes_audit_and_rebuilds(
    logged: Logged, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["runs", "prune", "--store", str(logged.root), "--older-than", "0"]
    assert main(line) == 0 and "more (-v)" in (listed := capsys.readouterr().out) and len(listed.splitlines()) <= 12
    tracker = logged.tracker
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # the next retention repeats it
        patch.setattr(tracker.linked_engines, "drop", lambda *arguments: signal.raise_signal(signal.SIGINT))
        tracker.drop(logged.runs["int8"], [ENGINE])
    assert main([*line, "--apply", "-v"]) == 0 and logged.runs["int8"][:8] in capsys.readouterr().out
    assert (logged.folder("fp32") / ENGINE).exists() and not (logged.folder("int8") / ENGINE).exists()
    config = AuditConfig(runs=(logged.runs["int8"],), keys=(str(logged.key),))

    [run_audit] = audit(config, tracker=logged.tracker).runs
    assert run_audit.passes("tactics") and run_audit.signature and run_audit.whole

    logged.edit("int8", Artifact.MANIFEST, lambda data: data.replace(b'"dropped"', b'"missed"'))
    [run_audit] = audit(config, tracker=logged.tracker).runs
    assert not run_audit.passes("tolerance")
