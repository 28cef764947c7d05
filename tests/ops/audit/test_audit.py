"""Which runs an audit selects, and its command."""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import campaigns, models
from tests.keys import new_key
from tests.long_runs import LONG
from tests.ops.audit.conftest import ONE_THREAD, QUICK, Logged
from tests.servers import MlflowServer
from tests.serving import folders
from tests.stores import copy_store
from trtops import errors, record
from trtops.cli.main import main
from trtops.comparator.report import Tolerances
from trtops.ops.auditing.log_check import LogCheck
from trtops.ops.auditing.op import AuditConfig, audit, choose_runs
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.registry.accepted import resolve
from trtops.ops.registry.certificate import write_certificate
from trtops.ops.registry.promote import promote
from trtops.spec import BuildConfig
from trtops.system import signing
from trtops.tactics.denied import DeniedTactic
from trtops.tracking.base import tracked
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.schema import Artifact, Tag
from trtops.tracking.spool import Spool


def test_runs_are_selected_by_every_filter(pristine: Logged) -> None:
    tracker, runs = pristine.tracker, pristine.runs
    log = LogCheck(tracker)

    def chosen(config: AuditConfig) -> tuple[str, ...]:
        return tuple(choose_runs(config, tracker, log)[0])

    assert chosen(AuditConfig(runs=(runs["fp32"], runs["fp16"]))) == (runs["fp32"], runs["fp16"])
    builds = chosen(AuditConfig(experiment="conv_net", tags=((Tag.KIND, "build"),)))
    assert set(builds) == {runs[label] for label in ("fp32", "fp16", "int8", "reused")}
    assert chosen(AuditConfig(accepted=True)) == (runs["accepted"],)
    drawn = [chosen(AuditConfig(experiment="conv_net", sample=2, seed=seed)) for seed in range(8)]
    assert all(len(set(runs)) == 2 for runs in drawn) and len({frozenset(runs) for runs in drawn}) > 1
    assert drawn[3] == chosen(AuditConfig(experiment="conv_net", sample=2, seed=3))
    with pytest.raises(errors.ConfigError, match="No run matches"):
        chosen(AuditConfig(experiment="another"))


def test_entry_of_deny_list_without_proof_is_named(logged: Logged) -> None:
    """As somebody else with an account writes it, to make the builds of others slower or less exact."""
    entry = DeniedTactic(backend_version="1", device_sha256="0" * 64, settings=(("NchwcTransformer", "on"),))
    for evidence, message in (
        ("0" * 32, "0" * 32),
        (logged.runs["campaign"], f"tag {Tag.PROOF} of run {logged.runs['campaign']} says nothing"),
    ):
        with tracked(logged.tracker, "nets", "deny", kind="deny", tags={Tag.EVIDENCE: evidence}) as run:
            run.log_json(entry, Artifact.DENIED)
            run.finish(None)
        [run_audit] = audit(AuditConfig(runs=(run.id,), rebuild=False), tracker=logged.tracker).runs
        assert any(message in contradiction.text() for contradiction in run_audit.contradictions)


def test_campaign_that_wrote_integers_for_floats_is_not_contradicted(tmp_path: Path, monkeypatch) -> None:
    tracker = MemoryTracker()
    model, feed = campaigns.two_blocks(tmp_path)
    with monkeypatch.context() as earlier_release:
        earlier_release.setattr(record, "_bring_to_types", lambda config: None)
        usual = campaigns.config(feed)
        check = replace(usual.check, tolerances=Tolerances(rtol=0, atol=1))
        campaign = debug_build(model, replace(usual, check=check, until=1), tracker=tracker)
    assert b'"rtol": 0,' in tracker.load(campaign.run_id).read_bytes(Artifact.CAMPAIGN)

    [audited] = audit(AuditConfig(runs=(campaign.run_id,), rebuild=False), tracker=tracker).runs

    assert [finding.subject for finding in audited.contradictions] == []


def test_invalid_options_are_refused() -> None:
    for options, message in (
        ({"at_least": "tactic"}, "Did you mean 'tactics'"),
        ({"ways": ("replays",)}, "ways"),
        ({"sample": 0}, "sample"),
        ({"runs": ("abcd",), "accepted": True}, "one of the two"),
        ({"certificates": ("engine",)}, "give keys"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            AuditConfig(**options)  # type: ignore[arg-type]


def test_certificates_are_audited_with_their_runs(
    logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate contradicts its run if anything was signed that the run does not state."""
    monkeypatch.setenv(signing.KEY_VARIABLE, str(logged.private))
    fp32, fp16 = logged.runs["fp32"], logged.runs["fp16"]
    facts = dict(write_certificate(fp32, tmp_path / "sound", tracker=logged.tracker).facts)
    files = [(tmp_path / "sound" / name).read_bytes() for name in ("engine.ort", "inputs.npz")]
    forged = {
        "run": lambda f: f.update(run=fp16),
        "limits": lambda f: f["verdict"].update(limits={}),
        "release": lambda f: f["environment"].update(backend_version="1.17.0"),
        "unknown run": lambda f: f.update(run="0" * 32),
    }
    for name, change in forged.items():
        folders.write(tmp_path / name, files[0], facts, files[1], change)
    (folders.write(tmp_path / "cut", files[0], facts, files[1]) / "engine.ort").write_bytes(files[0][:-1])
    certificates = [str(tmp_path / name) for name in ("sound", "cut", *forged)]
    config = AuditConfig(certificates=tuple(certificates), keys=(str(logged.key),), rebuild=False)
    rows = audit(config, tracker=logged.tracker).runs
    problems = {Path(row.name).name: " ".join(row.details()) for row in rows}

    assert [(row.name, row.id) for row in rows if row.passes("tactics")] == [
        (certificates[0], fp32), *((logged.tracker.info(run).name, run) for run in (fp32, fp16))
    ], [(row.name, row.details()) for row in rows]  # fmt: skip
    for name, problem in {
        "run": f"run {fp16} has fp16", "limits": "verdict limits: the certificate has {}",
        "release": "environment backend_version: the certificate has 1.17.0", "unknown run": "has no run with the id",
        "cut": "engine.ort is not what was signed",
    }.items():  # fmt: skip
        assert problem in problems[name]
    chosen = choose_runs(replace(config, accepted=True), logged.tracker, LogCheck(logged.tracker), [fp32])[0]
    assert chosen == [logged.runs["accepted"], fp32]


def test_resolve_requires_trusted_signature(logged: Logged, pristine: Logged, tmp_path: Path) -> None:
    model = next(pristine.root.parent.glob("moved-conv_net.onnx"))
    new_key(tmp_path / "other.pem", tmp_path / "other.pub")

    resolved = resolve(model, tracker=logged.tracker, name="conv_net", keys=[logged.key])
    assert resolved.run_id == logged.runs["accepted"] and resolved.signed_by == signing.key_id(logged.key)
    assert resolved.engine(logged.tracker).plan
    other = resolve(model, tracker=logged.tracker, name="conv_net", keys=[tmp_path / "other.pub"])
    assert other.run_id is None and "is not one of the given keys" in other.reason

    logged.edit("accepted", "engine/engine.ort", lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    logged.rewrite_manifest("accepted")
    with pytest.raises(errors.IncompleteRunError, match="that was resolved"):
        resolved.engine(logged.tracker)
    logged.rewrite_tags("accepted")
    engine = logged.tracker.info(logged.runs["accepted"]).tags[Tag.ENGINE_SHA256]
    logged.set("accepted", "version", Tag.ENGINE_SHA256, engine)

    assert resolve(model, tracker=logged.tracker, name="conv_net").run_id == logged.runs["accepted"]
    forged = resolve(model, tracker=logged.tracker, name="conv_net", keys=[logged.key])
    assert forged.run_id is None and "manifest.sig has" in forged.reason
    (logged.folder("accepted") / Artifact.SIGNATURE).unlink()
    assert "is not signed" in resolve(model, tracker=logged.tracker, name="conv_net", keys=[logged.key]).reason


def test_reports_are_escaped_readable_and_signed(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(signing.KEY_VARIABLE, str(logged.private))
    tracker = logged.tracker
    odd = tracker.start("odd", "<script>alert(1)</script>", kind="compare")
    odd.finish("good")

    result = audit(AuditConfig(runs=(logged.runs["fp32"], odd.id), ways=("replay",)), tracker=tracker)

    run = tracker.load(result.run_id)
    assert (run.info.kind, run.info.verdict, run.info.experiment) == ("audit", "good", "audit")
    assert type(result).from_json(run.read_bytes(Artifact.AUDIT_RESULT)).runs == result.runs
    page = run.read_bytes(Artifact.REPORT).decode()
    assert result.headline in page and logged.runs["fp32"] in page and "http:" not in page
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    _, statement = signing.verify(tracker.peek(result.run_id, Artifact.SIGNATURE) or b"", [logged.key])
    assert {Artifact.AUDIT_RESULT, Artifact.REPORT, Artifact.MANIFEST} <= signing.signed_files(statement).keys()
    assert statement["predicate"]["verdict"] == "good"


def test_spooled_runs_are_verified(logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that is drawn while the store is away lacks the parts that could not be read."""
    tracker, call, calls = OfflineTracker(MlflowTracker(logged.root), Spool(tmp_path / "spool")), Connection.call, [0]

    def away(self: Connection, *args: Any, **named: Any) -> Any:
        calls[0] -= 1
        if calls[0] < 0:
            raise errors.TrackingUnavailableError("it is away")
        return call(self, *args, **named)

    model = models.conv_net().fixed().write(tmp_path)
    config = ConvertConfig(build=BuildConfig(options=ONE_THREAD), check=QUICK, rebuild=True)
    spooled = []
    with monkeypatch.context() as patch:
        patch.setenv("TRTOPS_TRACKING_WAIT", "0")
        patch.setenv(signing.KEY_VARIABLE, str(logged.private))
        patch.setattr(Connection, "call", away)
        for calls[0] in (0, 7, 11):
            spooled.append(convert(model, config, tracker=tracker).run_id)
    tracker.upload_spool()

    audited = audit(AuditConfig(runs=tuple(spooled), rebuild=False, keys=(str(logged.key),)), tracker=tracker)

    assert tracker.spool.runs() == [] and all(tracker.load(run).manifest.run.spooled for run in spooled)  # type: ignore[union-attr]
    assert audited.verdict == "good", audited.page()


@pytest.mark.parametrize("served", [False, pytest.param(True, marks=pytest.mark.skipif(not LONG, reason="long"))])
def test_two_machines_share_only_the_store(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: bool
) -> None:
    root = copy_store(template, tmp_path / "shared" / "mlruns")

    def machine(name: str) -> OfflineTracker:
        folder = tmp_path / name
        folder.mkdir()
        for variable in ("HOME", "XDG_CACHE_HOME", "TRTOPS_HOME"):
            monkeypatch.setenv(variable, str(folder / variable.lower()))
        monkeypatch.chdir(folder)
        return OfflineTracker(MlflowTracker(location), Spool(folder / "spool"))

    with MlflowServer(root) if served else contextlib.nullcontext() as server:
        location = server.address if served else str(root)  # type: ignore[union-attr]
        built = machine("a")
        model = models.conv_net().fixed().write(tmp_path / "a")
        config = ConvertConfig(build=BuildConfig(options=ONE_THREAD), check=QUICK)
        run = convert(model, config, tracker=built, experiment="nets").run_id
        model.rename(tmp_path / "renamed.onnx")
        shutil.rmtree(tmp_path / "a")

        tracker = machine("b")
        audited = audit(AuditConfig(runs=(run,), ways=("replay",)), tracker=tracker)
        promoted = promote(run, tracker=tracker)
        resolved = resolve(tmp_path / "renamed.onnx", tracker=tracker)
        forged = tmp_path / "b" / "engine.ort"
        forged.write_bytes(b"forged")
        MlflowTracker(location)._client.log_artifact(run, str(forged), "engine")
        MlflowTracker(location)._client.set_tag(promoted.run_id, Tag.VERDICT, "bad")

        again = machine("a")
        result = audit(AuditConfig(runs=(run, promoted.run_id), rebuild=False), tracker=again)

    assert audited.verdict == promoted.verdict == "good" and resolved.run_id == promoted.run_id
    texts = [[contradiction.text() for contradiction in run.contradictions] for run in result.runs]
    assert any("engine/engine.ort" in line for line in texts[0]) and any("verdict: " in line for line in texts[1])
    assert not [*(tmp_path / "b").rglob("*.ort")][1:] and not [*tmp_path.glob("?/spool/*")]


def test_exit_code_reports_failed_runs(logged: Logged, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["runs", "audit", "--store", str(logged.root), "--no-rebuild"]

    assert main([*line, logged.runs["fp32"]]) == 0
    output = capsys.readouterr().out
    assert "verified  -" in output and "1 of 1 runs pass" in output
    logged.set("fp32", "tag", Tag.ENGINE_SHA256, "0" * 64)
    assert main([*line, logged.runs["fp32"], "-v"]) == 1
    assert f"tag {Tag.ENGINE_SHA256} says {'0' * 64}" in capsys.readouterr().out
    assert main([*line, logged.runs["fp16"], "--key", str(logged.key)]) == 0
    assert main([*line, logged.runs["fp16"], "--key", str(tmp_path / "none.pub")]) == 3
    assert main(line) == 2
