"""Which runs an audit selects, how it resumes after a kill, and its command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.keys import new_key
from tests.ops.audit.conftest import Logged
from trtops import errors
from trtops.cli.main import main
from trtops.ops.auditing.config import AuditConfig
from trtops.ops.auditing.op import audit, choose_runs
from trtops.ops.auditing.result import AuditResult, RunAudit
from trtops.ops.campaign.promote import resolve
from trtops.ops.result import finish_with, op_run
from trtops.system import signing
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Artifact, Tag


def test_runs_are_selected_by_every_filter(pristine: Logged) -> None:
    tracker, runs = pristine.tracker, pristine.runs

    assert choose_runs(AuditConfig(runs=(runs["fp32"][:8], runs["fp16"])), tracker) == (runs["fp32"], runs["fp16"])
    builds = choose_runs(AuditConfig(experiment="conv_net", kind="build"), tracker)
    assert set(builds) == {runs[each] for each in ("fp32", "fp16", "int8", "reused")}
    assert choose_runs(AuditConfig(accepted=True), tracker) == (runs["accepted"],)
    drawn = [choose_runs(AuditConfig(experiment="conv_net", sample=2, seed=seed), tracker) for seed in range(8)]
    assert all(len(set(each)) == 2 for each in drawn) and len({frozenset(each) for each in drawn}) > 1
    assert drawn[3] == choose_runs(AuditConfig(experiment="conv_net", sample=2, seed=3), tracker)
    with pytest.raises(errors.ConfigError, match="No run matches"):
        choose_runs(AuditConfig(experiment="another"), tracker)


def test_invalid_options_are_refused() -> None:
    with pytest.raises(errors.ConfigError, match="Did you mean 'tactics'"):
        AuditConfig(at_least="tactic")  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="ways"):
        AuditConfig(ways=("replays",))  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="sample"):
        AuditConfig(sample=0)
    with pytest.raises(errors.ConfigError, match="one of the two"):
        AuditConfig(runs=("abcd",), accepted=True)


KILLED = """
import os, signal, sys
from trtops.ops.auditing import op
from trtops.ops.auditing.config import AuditConfig
from trtops.tracking.mlflow import MlflowTracker

op._SAVE_SECONDS = 0.0
kill_after = int(sys.argv[2])
config = AuditConfig(experiment="many", rebuild=False)
def progress(done, total):
    if done == kill_after:
        os.kill(os.getpid(), signal.SIGKILL)
op.audit(config, tracker=MlflowTracker(sys.argv[1]), progress=progress)
"""


def test_killed_audit_is_resumed(tmp_path: Path) -> None:
    tracker = MlflowTracker(tmp_path / "mlruns")
    ids = []
    for number in range(12):
        run = tracker.start("many", f"run {number}", kind="compare")
        run.log_text(str(number), "number.txt")
        run.finish("good")
        ids.append(run.id)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "mlruns"), "7"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert killed.returncode == -signal.SIGKILL
    [half] = tracker.find("audit")
    first = json.loads(tracker.peek(half.id, Artifact.AUDIT_PART) or b"")
    assert half.status == "running" and 5 <= len(first) <= 7
    later = tracker.start("many", "after the kill", kind="compare")
    later.finish("good")

    seen: list[int] = []
    result = audit(
        AuditConfig(experiment="many", rebuild=False), tracker=tracker, progress=lambda done, _: seen.append(done)
    )

    assert result.run_id == half.id and tracker.info(half.id).status == "finished"
    assert {run.id for run in result.runs} == set(ids)
    kept = {run.id: run for run in result.runs}
    assert all(kept[each["id"]].seconds == each["seconds"] for each in first)
    again = audit(AuditConfig(experiment="many", rebuild=False), tracker=tracker)
    assert again.run_id != half.id and {run.id for run in again.runs} == {*ids, later.id}


def test_audit_resumes_after_store_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = MemoryTracker()
    for number in range(4):
        tracker.start("many", f"run {number}", kind="compare").finish("good")
    load, calls = tracker.load, []

    def away(run_id: str) -> object:
        calls.append(run_id)
        if len(calls) == 3:
            raise errors.TrackingUnavailableError("away")
        return load(run_id)

    monkeypatch.setattr(tracker, "load", away)
    config = AuditConfig(experiment="many", rebuild=False)
    with pytest.raises(errors.TrackingUnavailableError):
        audit(config, tracker=tracker)

    result = audit(config, tracker=tracker)

    assert len(result.runs) == 4 and result.verdict == "good"
    assert len(calls) == 5  # two, the one that failed, and the two that were left
    assert len(tracker.find("audit")) == 1


def test_resolve_requires_trusted_signature(logged: Logged, pristine: Logged, tmp_path: Path) -> None:
    model = next(pristine.root.parent.glob("moved-conv_net.onnx"))
    new_key(tmp_path / "other.pem", tmp_path / "other.pub")

    found = resolve(model, tracker=logged.tracker, name="conv_net", keys=[logged.key])
    assert found.run_id == logged.runs["accepted"] and found.signed_by == signing.key_id(logged.key)
    assert found.engine(logged.tracker).plan
    other = resolve(model, tracker=logged.tracker, name="conv_net", keys=[tmp_path / "other.pub"])
    assert other.run_id is None and "is not one of the given keys" in other.why

    logged.edit("accepted", "engine/engine.ort", lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    logged.rewrite_manifest("accepted")
    with pytest.raises(errors.IncompleteRunError, match="that was resolved"):
        found.engine(logged.tracker)
    logged.rewrite_tags("accepted")
    logged.set_version_tag(Tag.ENGINE_SHA256, logged.tracker.info(logged.runs["accepted"]).tags[Tag.ENGINE_SHA256])

    assert resolve(model, tracker=logged.tracker, name="conv_net").run_id == logged.runs["accepted"]
    forged = resolve(model, tracker=logged.tracker, name="conv_net", keys=[logged.key])
    assert forged.run_id is None and "manifest.dsse.json has" in forged.why
    (logged.folder("accepted") / Artifact.SIGNATURE).unlink()
    assert "is not signed" in resolve(model, tracker=logged.tracker, name="conv_net", keys=[logged.key]).why


def test_audit_signs_its_report(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(signing.KEY_VARIABLE, str(logged.private))
    result = audit(AuditConfig(runs=(logged.runs["fp32"],), rebuild=False), tracker=logged.tracker)

    envelope = logged.tracker.peek(result.run_id, Artifact.SIGNATURE)
    verified = signing.verify(envelope or b"", [logged.key])

    assert {Artifact.AUDIT_RESULT, Artifact.REPORT, Artifact.MANIFEST} <= set(verified.subjects)
    assert verified.predicate["verdict"] == "good"


def test_exit_code_reports_failed_runs(logged: Logged, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["runs", "audit", "--store", str(logged.root), "--no-rebuild"]
    page, text = tmp_path / "audit.html", tmp_path / "audit.md"

    assert main([*line, logged.runs["fp32"], "--html", str(page), "--markdown", str(text)]) == 0
    assert "whole, " in capsys.readouterr().out and "1 of 1 runs pass" in page.read_text() + text.read_text()
    logged.set_tag("fp32", Tag.ENGINE_SHA256, "0" * 64)
    assert main([*line, logged.runs["fp32"]]) == 1
    assert f"tag {Tag.ENGINE_SHA256} says {'0' * 64}" in capsys.readouterr().out
    assert main([*line, logged.runs["fp16"], "--key", str(logged.key)]) == 0
    assert main([*line, logged.runs["fp16"], "--key", str(tmp_path / "none.pub")]) == 3
    assert main(line) == 2


def test_report_draws_builds_by_grade() -> None:
    grades = ("bytes equal", "bytes equal", "outputs equal")
    runs = tuple(RunAudit(id=f"{n}" * 32, name=f"build {n}", kind="build", grade=g) for n, g in enumerate(grades))
    tracker = MemoryTracker()
    with op_run(tracker, "e", "audit", kind="audit") as run:
        finish_with(run, AuditResult(runs=runs), tracker)
    drawn = tracker.load(run.id).read_bytes(Artifact.REPORT).decode()
    bars = re.findall('<div class="bar" title="([^"]*)"', drawn)
    assert bars == ["bytes equal: 2", "outputs equal: 1"]
