"""Facts that a run stores in several places are compared: more than 100 ways of tampering, each found and named."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.keys import new_key
from tests.ops.audit.conftest import Logged
from trtops import errors
from trtops.comparator.results import RunResults
from trtops.json import from_json, to_json
from trtops.ops.auditing.integrity import SharedReads, check_integrity
from trtops.ops.auditing.log_check import LogCheck
from trtops.ops.auditing.op import AuditConfig, audit, choose_runs
from trtops.ops.auditing.result import RunAudit
from trtops.system import signing
from trtops.tactics.table import CampaignTable
from trtops.tracking.base import tracked
from trtops.tracking.schema import MAX_SHORT_TAG, Artifact, Tag


def checked(store: Logged, run: str, **options: object) -> RunAudit:
    config = AuditConfig(runs=(store.runs[run],), rebuild=False, **options)  # type: ignore[arg-type]
    [run_audit] = audit(config, tracker=store.tracker).runs
    return run_audit


def flipped(data: bytes) -> bytes:
    """One bit in the middle changed."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def swapped(old: str, new: str) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old.encode(), new.encode(), 1)


def another_table(store: Logged) -> Callable[[bytes], bytes]:
    """A campaign's table in which an iteration has another verdict."""

    def change(data: bytes) -> bytes:
        table = CampaignTable.from_bytes(data)
        row = table.names.index(store.runs["iteration"])
        table._verdicts[row] = 1 - table._verdicts[row]
        return table.to_bytes()

    return change


def edited(change: Callable[[Any], object]) -> Callable[[bytes], bytes]:
    """A JSON file that was changed in place."""

    def edit(data: bytes) -> bytes:
        content = json.loads(data)
        change(content)
        return json.dumps(content, indent=2, ensure_ascii=False).encode()

    return edit


def set_to(value: object, *keys: str | int) -> Callable[[bytes], bytes]:
    """A JSON file with another value in it."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return edited(change)


def doubled(*keys: str | int) -> Callable[[bytes], bytes]:
    """A JSON file with a number doubled."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] *= 2

    return edited(change)


def pickled(data: bytes) -> bytes:
    """Golden outputs that run code where they are unpickled."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "golden.npz")
        np.savez(file, x=np.array([Bomb()], dtype=object))
        return file.read_bytes()


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return exit, (9,)


TASK_SCORE = {
    "metric": "top1", "actual": 0.99, "golden": 0.99, "loss": 0.0, "low": 0.0, "high": 0.0, "exact": True, "samples": 9,
}  # fmt: skip


def scaled(data: bytes) -> bytes:
    """Golden outputs with other numbers."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "golden.npz")
        file.write_bytes(data)
        [(name, iterations)] = RunResults.load(str(file))
        results = RunResults()
        results.add(
            [{n: np.asarray(a) * 3 for n, a in iteration.items()} for iteration in iterations], runner_name=name
        )
        results.save(str(file))
        return file.read_bytes()


def other_data(data: bytes) -> bytes:
    """Check data with other numbers."""
    return to_json([{name: array + 1 for name, array in feed.items()} for feed in from_json(data.decode())]).encode()


ENGINE, TACTICS, SPEC, LAYERS = "engine/engine.ort", Artifact.TACTICS, Artifact.SPEC, Artifact.LAYERS
OPTIONS, ACCURACY, MATERIALS, PAGE = Artifact.ENGINE_OPTIONS, Artifact.ACCURACY, Artifact.MATERIALS, Artifact.REPORT
CONFIG, TABLE, GOLDEN, RESULT = (
    Artifact.CAMPAIGN, Artifact.CAMPAIGN_TABLE, Artifact.GOLDEN, Artifact.CAMPAIGN_RESULT,
)  # fmt: skip
CACHE, GIVEN = Artifact.CALIBRATION_CACHE, "materials/calibration.cache"
MAX_ABS = ("report", "outputs", 0, "statistics", "max_abs")
FILES: dict[str, tuple[str, str, Callable[[bytes], bytes], str]] = {
    "a bit of the engine": ("fp32", ENGINE, flipped, OPTIONS),
    "a bit of an accepted engine": ("accepted", ENGINE, flipped, "version 1 of 'conv_net'"),
    "a bit of an iteration's engine": ("iteration", ENGINE, flipped, OPTIONS),
    "the end of the engine": ("fp16", ENGINE, lambda data: data[: len(data) // 2], OPTIONS),
    "no engine at all": ("fp16", ENGINE, lambda data: b"engine", "cannot be read as an engine"),
    "a pickle as engine": ("gate", ENGINE, pickled, "cannot be read as an engine"),
    "the engine's digest": ("fp32", OPTIONS, set_to("0" * 64, "sha256"), OPTIONS),
    "the engine's threads": ("fp32", OPTIONS, set_to(7, "intra_op_threads"), "intra_op_threads of the engine"),
    "a kernel": ("fp32", TACTICS, swapped("@CPU", "@GPU"), LAYERS),
    "a kernel of an iteration": ("iteration", TACTICS, swapped("@CPU", "@GPU"), LAYERS),
    "a missing tactic": ("fp32", TACTICS, edited(lambda content: content["choices"].pop()), LAYERS),
    "the release of the tactics": ("fp32", TACTICS, set_to("9.9", "backend_version"), "release that chose"),
    "a layer's kernel": ("fp32", LAYERS, swapped("@CPU", "@GPU"), ENGINE),
    "a missing layer": ("fp32", LAYERS, edited(lambda content: content.pop()), ENGINE),
    "a layer's tensor": ("int8", LAYERS, edited(lambda content: content[0]["outputs"].append("x")), ENGINE),
    "the precision": ("fp16", SPEC, swapped('"fp16"', '"fp32"'), "param precision"),
    "the model of the spec": ("fp32", SPEC, set_to("0" * 64, "model_sha256"), "model: "),
    "the seed of an iteration": ("iteration", SPEC, set_to(77, "config", "options", "tactic_seed"), CONFIG),
    "the calibration of the spec": ("calibrated", SPEC, set_to("0" * 64, "calibration_sha256"), GIVEN),
    "the release": ("fp32", Artifact.ENVIRONMENT, set_to("9.9", "backend_version"), "param env.backend_version"),
    "the processor": ("fp32", Artifact.ENVIRONMENT, set_to("0" * 64, "device_sha256"), "param env.device_sha256"),
    "an error": ("fp16", ACCURACY, set_to(1e-9, *MAX_ABS), "metric error/max_abs"),
    "an error of a gate": ("gate", ACCURACY, set_to(1e-9, *MAX_ABS), "metric error/max_abs"),
    "a latency": ("fp32", ACCURACY, doubled("latency", "p50_ms"), "metric latency/p50_ms"),
    "an invented accuracy": (
        "fp32",
        ACCURACY,
        set_to([TASK_SCORE], "tasks"),
        "metric accuracy/top1",
    ),
    "an output's name": ("fp32", ACCURACY, set_to("y", "report", "outputs", 0, "name"), "the model"),
    "a bit of the model": ("fp32", "model/conv_net.onnx", flipped, "model"),
    "the materials' data": ("gate", MATERIALS, swapped('"name": "data",', '"name": "golden",'), "golden given"),
    "the digest of the data": (
        "gate",
        MATERIALS,
        edited(lambda content: content["inputs"][-1].update(sha256="0")),
        "data",
    ),
    "the check data": ("gate", "materials/data.json", other_data, "data given"),
    "the ranges given": ("calibrated", GIVEN, doubled("ranges", 0, "amax"), "calibration cache given"),
    "the ranges built with": ("calibrated", CACHE, lambda data: data + b" ", "calibration cache given"),
    "the calibrated ranges": ("calibrate", Artifact.CALIBRATION_JSON, doubled("ranges", 0, "amax"), "ranges: "),
    "the ranges as text": ("calibrate", CACHE, lambda data: data.replace(b": 3", b": 4", 1), "ranges: "),
    "the table of ranges": ("calibrate", Artifact.CALIBRATION_RANGES, doubled("data", 0, 1), "largest values"),
    "the calibration's samples": ("calibrate", Artifact.CALIBRATION_JSON, doubled("samples"), "number of samples"),
    "the page's verdict": ("fp32", PAGE, swapped(">good<", ">excellent<"), PAGE),
    "a number on the page": ("fp16", PAGE, swapped("max_abs", "min_abs"), PAGE),
    "the page of a campaign": ("campaign", PAGE, swapped("bad", "good"), PAGE),
    "the page of a calibration": ("calibrate", PAGE, swapped("samples", "images"), PAGE),
    "the page of a reduction": ("reduce", PAGE, swapped("nodes", "kernels"), PAGE),
    "the page of a reused engine": ("reused", PAGE, swapped("engine of run", "engine of one"), PAGE),
    "the page's data": ("fp32", Artifact.REPORT_DATA, set_to("bad", "verdict"), "verdict: "),
    "the title of the page": ("reduce", Artifact.REPORT_DATA, set_to("another", "title"), PAGE),
    "a gate's finding": ("gate", Artifact.GATE, swapped('"pass"', '"refuse"'), "the gate's decision"),
    "a campaign's script": ("campaign", CONFIG, set_to("evil.py", "check", "data"), "config of the campaign"),
    "a campaign's command": (
        "campaign",
        CONFIG,
        lambda data: set_to({"command": ["sh", "{engine}"]}, "command")(set_to(None, "check", "tolerances")(data)),
        "config of the",
    ),
    "a campaign's count": ("campaign", RESULT, doubled("good"), "iterations that are good"),
    "a campaign's verdict": ("campaign", RESULT, set_to("unproven", "verdict"), "verdict: "),
    "pickled golden outputs": ("campaign", GOLDEN, pickled, "golden outputs"),
    "golden outputs of zeros": ("campaign", GOLDEN, lambda data: bytes(1 << 22), GOLDEN),
    "other golden outputs": ("campaign", GOLDEN, scaled, "golden outputs"),
    "a bit of the campaign table": ("campaign", TABLE, flipped, "Campaign table"),
    "the run that was reused": ("reused", Artifact.REUSED, set_to("0" * 32, "run"), "whose engine it reused"),
}
"""What is changed: the run, the file, and how; and a place that is named when everything around it was adjusted."""


def texts(store: Logged, run: str, keys: tuple[str, ...] = ()) -> str:
    """All contradictions of a run, by default as an audit without keys finds them."""
    integrity = check_integrity(store.tracker.load(store.runs[run]), SharedReads(store.tracker, keys))
    return "\n".join(contradiction.text() for contradiction in integrity.contradictions)


def test_untouched_runs_have_no_contradictions(logged: Logged, unsigned: Logged) -> None:
    result = audit(AuditConfig(runs=tuple(logged.runs.values()), rebuild=False, keys=(str(logged.key),)),
                   tracker=logged.tracker)  # fmt: skip
    assert [run_audit.headline() for run_audit in result.runs if run_audit.answer("bytes") != "verified"] == []
    assert {run_audit.signature for run_audit in result.runs} == {signing.key_id(logged.key)}
    assert {run: texts(unsigned, run) for run in unsigned.runs} == dict.fromkeys(unsigned.runs, "")


@pytest.mark.parametrize("name", FILES)
def test_changed_file_is_named_however_well_hidden(name: str, victim: Logged) -> None:
    run, path, change, message = FILES[name]
    victim.edit(run, path, change)
    if path == ENGINE:
        assert path in texts(victim, run)  # it does not match the manifest

    victim.rewrite_manifest(run)
    if path == ENGINE:
        assert f"{path}: tag {Tag.NOTE} says" in texts(victim, run)
    victim.rewrite_tags(run)

    # Every number and tag of the database, and the manifest's statement of them.
    if path == ENGINE:
        victim.set(run, "metric", "build/engine_bytes", (victim.folder(run) / path).stat().st_size)
    victim.restate(run)
    assert message in texts(victim, run)


def test_rewritten_engine_contradicts_the_registry(logged: Logged) -> None:
    logged.edit("accepted", ENGINE, flipped)
    logged.rewrite_manifest("accepted")
    logged.rewrite_tags("accepted")
    [engine] = [
        contradiction
        for contradiction in checked(logged, "accepted").contradictions
        if contradiction.subject == "engine"
    ]
    assert any(claim.source.startswith("version 1 of 'conv_net'") for claim in engine.claims)


def test_runs_of_all_kinds_have_few_short_tags(pristine: Logged) -> None:
    for info in pristine.tracker.find():
        ours = {name: value for name, value in info.tags.items() if name.startswith("trtops.") and name != Tag.ERROR}
        assert len(ours) <= 12 and max(map(len, ours.values())) <= MAX_SHORT_TAG, ours


WRONG = "0" * 64
Z = "Z" * 8
IN_THE_DATABASE: dict[str, tuple[str, str, str, str | float, str]] = {
    "the largest error": ("fp16", "metric", "error/max_abs", 1e-9, "metric error/max_abs: the store"),
    "its share of the limit": ("fp16", "metric", "error/of_limit", 0.01, "metric error/of_limit: the store"),
    "the error of an iteration": ("iteration", "metric", "error/max_abs", 0.5, "metric error/max_abs: the store"),
    "a latency": ("fp32", "metric", "latency/p50_ms", 1e-3, "metric latency/p50_ms: the store"),
    "the build time": ("fp32", "metric", "build/seconds", 0.01, "metric build/seconds: the store"),
    "the engine's size": ("fp32", "metric", "build/engine_bytes", 5, "size of the engine"),
    "a gate's number": ("calibrate", "metric", "calibration/tensors", 3, "number of tensors"),
    "a reduction's number": ("reduce", "metric", "reduce/nodes", 1, "metric reduce/nodes"),
    "a count": ("campaign", "metric", "iterations/bad", 0.5, "iterations that are bad"),
    "a history": ("fp16", "history", "error/max_abs", 1e-9, "history of metric error/max_abs"),
    "the engine's digest": ("fp32", "tag", Tag.ENGINE_SHA256, WRONG, "engine: tag"),
    "the digest that a reused engine has": ("reused", "tag", Tag.ENGINE_SHA256, WRONG, "engine: tag"),
    "the run of a reused engine": ("reused", "tag", Tag.REUSED_FROM, WRONG[:32], "the run of the engine"),
    "the spec's digest": ("fp32", "param", "spec_sha256", WRONG, "spec: param"),
    "the model's digest": ("fp32", "tag", Tag.MODEL_SHA256, WRONG, "model: tag"),
    "the model of a calibration": ("calibrate", "tag", Tag.MODEL_SHA256, WRONG, "model: tag"),
    "the data of a calibration": ("calibrate", "tag", Tag.DATA_SHA256, WRONG, "data: tag"),
    "the verdict": ("fp32", "tag", Tag.VERDICT, "bad", "verdict: "),
    "the verdict of an iteration": ("iteration", "tag", Tag.VERDICT, "error", "verdict: "),
    "the decision of a gate": ("gate", "tag", Tag.GATE, "refuse", "the gate's decision"),
    "the release": ("fp32", "param", "env.backend_version", "9.9", "param env.backend_version"),
    "the golden outputs": ("campaign", "tag", Tag.GOLDEN_SHA256, WRONG, "golden outputs"),
    "the golden outputs of an iteration": ("iteration", "param", "golden_sha256", WRONG, "golden outputs"),
    "the process": ("fp32", "tag", Tag.OWNER, Z, f"tag {Tag.OWNER}"),
    "the model's path": ("fp32", "param", "model_path", Z, "param model_path"),
    "the headline": ("reduce", "tag", Tag.HEADLINE, Z, f"tag {Tag.HEADLINE}"),
    "the description": ("fp32", "tag", Tag.NOTE, "**good**", f"tag {Tag.NOTE}: it is not the description"),
    "the user's tag": ("fp32", "tag", "mlflow.user", Z, "user: "),
    "the digest of the manifest": ("fp32", "tag", Tag.MANIFEST_SHA256, WRONG, "manifest.json: tag"),
    "a param": ("fp16", "param", "precision", "fp32", "param precision"),
    "a param of a reduction": ("reduce", "param", "max_checks", "99", "param max_checks"),
    "the registry": ("accepted", "version", Tag.ENGINE_SHA256, WRONG, "version 1 of 'conv_net'"),
    "the user": ("fp32", "run", "user_id", Z, "user: "),
    "the run's name": ("fp32", "run", "name", Z, "name: the store says ZZZZZZZZ"),
    "the start": ("fp32", "run", "start_time", 1e12, "start time: the store"),
    "the end": ("fp32", "run", "end_time", 2e12, "end time: the store"),
    "a failed status": ("fp32", "run", "status", "FAILED", "shown status: MLflow says FAILED"),
    "a killed status": ("campaign", "run", "status", "KILLED", "status: the store says killed"),
    "a running status": ("reduce", "run", "status", "RUNNING", "status: the store says running"),
    "a moved run": ("fp32", "run", "experiment_id", 0, "experiment: the store says Default"),
    "a renamed experiment": ("fp32", "experiment", "name", Z, "experiment: the store says ZZZZZZZZ"),
    "a moved iteration": ("iteration", "tag", "mlflow.parentRunId", WRONG[:32], "parent: the store"),
}
"""What is changed: the run, where, the name and the value; and what must be named."""

DERIVED = (
    "the largest error", "its share of the limit", "the error of an iteration", "a latency", "the build time",
    "the engine's size", "a gate's number", "a count", "the engine's digest", "a param",
    "the digest that a reused engine has", "the spec's digest", "the model's digest", "the model of a calibration",
    "the data of a calibration", "the verdict", "the verdict of an iteration", "the release", "the golden outputs",
    "the golden outputs of an iteration", "the description", "the decision of a gate", "a renamed experiment",
    "the user", "a param of a reduction", "a reduction's number",
)  # fmt: skip
"""Values that files state as well, so that a changed statement does not hide them."""


@pytest.mark.parametrize("name", IN_THE_DATABASE)
def test_changed_database_value_is_named(name: str, victim: Logged) -> None:
    run, where, changed, value, named = IN_THE_DATABASE[name]
    victim.set(run, where, changed, value)
    assert named in texts(victim, run)

    if name in DERIVED:
        victim.restate(run)
        assert texts(victim, run)


def test_forged_rows_are_found_by_filters(victim: Logged) -> None:
    victim.set("fp32", "run", "status", "KILLED")
    [iteration] = [
        info for info in victim.tracker.find(parent=victim.runs["campaign"]) if info.tags[Tag.ITERATION] == "1"
    ]
    victim.execute("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", iteration.id)

    assert (
        victim.runs["fp32"]
        in choose_runs(AuditConfig(experiment="conv_net"), victim.tracker, LogCheck(victim.tracker))[0]
    )
    assert f"verdict of iteration {iteration.id}" in texts(victim, "campaign")
    assert "no such run" in texts(victim, "campaign")


@pytest.mark.parametrize("path", ["accuracy/unlisted.json", "report/report.html.bak", "model/link.onnx"])
def test_unlisted_file_is_named(path: str, victim: Logged) -> None:
    file = victim.folder("fp32") / path
    if "link" in path:
        file.symlink_to("nowhere")
    else:
        file.write_text("{}")
    assert f"{path}: manifest.json does not list it" in texts(victim, "fp32")


@pytest.mark.parametrize("path", [PAGE, Artifact.REPORT_DATA, ACCURACY, "model/conv_net.onnx"])
def test_removed_file_is_named_although_unlisted(path: str, victim: Logged) -> None:
    (victim.folder("fp32") / path).unlink()
    assert path in texts(victim, "fp32")
    victim.forget("fp32", path)
    assert path in texts(victim, "fp32")
    victim.restate("fp32")
    assert texts(victim, "fp32") or path.startswith("model/")  # without its model, a run cannot be rebuilt


def test_forged_data_runs_no_script_and_fills_no_memory(victim: Logged, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("trtops.tracking.reading._MAX_READ", 1 << 24)
    script = victim.folder("gate") / "materials/evil.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nload_data = list\n")
    for path in ("materials/evil.py", "materials/evil.py:load_data"):
        victim.edit("gate", MATERIALS, edited(lambda materials, path=path: materials["inputs"][-1].update(path=path)))
        victim.list_file("gate", "materials/evil.py")
        victim.rewrite_manifest("gate")
        assert "materials/evil.py" in texts(victim, "gate")
        audit(AuditConfig(runs=(victim.runs["gate"],), ways=("replay",)), tracker=victim.tracker)
    assert not (tmp_path / "ran").exists()

    for run, path in (("campaign", GOLDEN), ("campaign", CONFIG), ("fp32", Artifact.REPORT_DATA)):
        with open(victim.folder(run) / path, "r+b") as file:
            file.truncate(1 << 25)
        victim.rewrite_manifest(run)
        assert path in texts(victim, run)
        with pytest.raises(errors.IncompleteRunError, match="trtops writes at most 16777216"):
            victim.tracker.load(victim.runs[run]).read_bytes(path)


def test_page_of_another_release_is_not_verified(victim: Logged) -> None:
    victim.edit("fp32", PAGE, swapped("trtops, layout ", "trtops, layout 0"))
    victim.rewrite_manifest("fp32")
    victim.restate("fp32")

    run_audit = checked(victim, "fp32")

    assert run_audit.contradictions == () and run_audit.answer("bytes") == "not verified"
    assert any(PAGE in sentence for sentence in run_audit.unverified) and not run_audit.passes("tolerance")


def test_campaign_table_is_compared_with_iterations(logged: Logged) -> None:
    logged.edit("campaign", Artifact.CAMPAIGN_TABLE, another_table(logged))
    logged.rewrite_manifest("campaign")
    logged.rewrite_tags("campaign")

    parent, child = checked(logged, "campaign"), checked(logged, "iteration")

    assert f"verdict of iteration {logged.runs['iteration']}" in {
        contradiction.subject for contradiction in parent.contradictions
    }
    [verdict] = [contradiction for contradiction in child.contradictions if contradiction.subject == "verdict"]
    assert any(claim.source.startswith(Artifact.CAMPAIGN_TABLE) for claim in verdict.claims)


def test_forged_and_missing_signatures_are_named(
    logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = logged.folder("fp32") / Artifact.SIGNATURE
    new_key(tmp_path / "forger.pem", tmp_path / "forger.pub")
    monkeypatch.setenv(signing.KEY_VARIABLE, str(tmp_path / "forger.pem"))
    signed = signing.open_bundle(file.read_bytes())
    facts = {name: signed["predicate"][name] for name in ("run", "verdict")}
    file.write_bytes(signing.sign("run", signing.signed_files(signed), **facts))
    logged.copy_to_model("fp32")
    monkeypatch.delenv(signing.KEY_VARIABLE)

    trusted = (str(logged.key),)
    forged, replaced = checked(logged, "fp32", keys=trusted).contradictions
    assert "is not one of the given keys" in forged.reason and "of the log" in replaced.claims[0].source
    assert checked(logged, "fp32", keys=(*trusted, str(tmp_path / "forger.pub"))).contradictions == (replaced,)

    file.unlink()
    assert "is not signed, and a signature is required" in texts(logged, "fp32", keys=trusted)
    assert "was signed when it finished" in texts(logged, "fp32")
    logged.execute("DELETE FROM tags WHERE run_uuid = ? AND key = ?", logged.runs["fp16"], Tag.MANIFEST_SHA256)
    assert Tag.MANIFEST_SHA256 in texts(logged, "fp16")


def test_unsigned_run_of_a_signed_store_is_not_verified(logged: Logged) -> None:
    with tracked(logged.tracker, "nets", "unsigned", kind="compare") as run:
        run.finish("good")
    integrity = check_integrity(logged.tracker.load(run.id), SharedReads(logged.tracker))
    assert integrity.contradictions == () and "it is not signed" in integrity.unverified[0]

    logged.unsign("fp16")  # which the log shows, however well it is hidden
    assert "signature: entry" in texts(logged, "fp16") and "manifest: entry" in texts(logged, "fp16")


def test_signature_covers_verdict_and_run(logged: Logged) -> None:
    logged.set("fp32", "tag", Tag.VERDICT, "bad")
    run_audit = checked(logged, "fp32", keys=(str(logged.key),))
    assert f"manifest.sig has good; tag {Tag.VERDICT} has bad" in [
        contradiction.reason for contradiction in run_audit.contradictions
    ]

    # An old run cannot replace a new one, although its signature is valid.
    for path in (Artifact.SIGNATURE, Artifact.MANIFEST):
        (logged.folder("int8") / path).write_bytes((logged.folder("fp16") / path).read_bytes())
    run_audit = checked(logged, "int8", keys=(str(logged.key),))
    assert any(
        f"it was made for run {logged.runs['fp16']}" in contradiction.reason
        for contradiction in run_audit.contradictions
    )


def test_private_key_is_never_stored(pristine: Logged) -> None:
    secret = b"".join(pristine.private.read_bytes().splitlines()[1:-1])
    files = [file for file in pristine.root.rglob("*") if file.is_file()]

    assert len(files) > 50
    assert not [file for file in files if secret in file.read_bytes() or b"PRIVATE KEY" in file.read_bytes()]
