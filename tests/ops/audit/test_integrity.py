"""Facts that a run stores in several places are compared: more than 40 ways of tampering, each found and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.keys import new_key
from tests.ops.audit.conftest import Logged
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.auditing.result import RunAudit
from trtops.record import sha256
from trtops.system import signing
from trtops.tactics.table import CampaignTable
from trtops.tracking.schema import Artifact, Tag


def checked(store: Logged, run: str, **asked: object) -> RunAudit:
    config = AuditConfig(runs=(store.runs[run],), rebuild=False, **asked)  # type: ignore[arg-type]
    [found] = audit(config, tracker=store.tracker).runs
    return found


def flipped(data: bytes) -> bytes:
    """One bit in the middle changed."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def swapped(old: str, new: str) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old.encode(), new.encode(), 1)


def with_error(value: float) -> Callable[[bytes], bytes]:
    """A report whose first output has another largest error."""

    def change(data: bytes) -> bytes:
        report = json.loads(data)
        report["report"]["outputs"][0]["statistics"]["max_abs"] = value
        return json.dumps(report).encode()

    return change


def another_table(store: Logged) -> Callable[[bytes], bytes]:
    """A campaign's table in which an iteration has another verdict."""

    def change(data: bytes) -> bytes:
        table = CampaignTable.from_bytes(data)
        row = table.names.index(store.runs["iteration"])
        table._verdicts[row] = 1 - table._verdicts[row]
        return table.to_bytes()

    return change


ENGINE, TACTICS, SPEC = "engine/engine.ort", Artifact.TACTICS, Artifact.SPEC
FILES: dict[str, tuple[str, str, Callable[[bytes], bytes]]] = {
    "engine": ("fp32", ENGINE, flipped),
    "engine of an accepted run": ("accepted", ENGINE, flipped),
    "tactic record": ("fp32", TACTICS, swapped("@CPU", "@GPU")),
    "tactic record of an iteration": ("iteration", TACTICS, swapped("@CPU", "@GPU")),
    "calibration cache": ("int8", Artifact.CALIBRATION_CACHE, flipped),
    "spec": ("fp16", SPEC, swapped('"fp16"', '"fp32"')),
    "environment": ("fp32", Artifact.ENVIRONMENT, swapped('"backend_version": "1', '"backend_version": "2')),
    "comparison": ("fp16", Artifact.ACCURACY, with_error(1e-9)),
    "layers": ("fp32", Artifact.LAYERS, swapped("@CPU", "@GPU")),
    "model": ("fp32", "model/conv_net.onnx", flipped),
    "campaign table": ("campaign", Artifact.CAMPAIGN_TABLE, flipped),
}
"""What is changed: the run, the file, and how."""


def test_untouched_runs_have_no_contradictions(pristine: Logged) -> None:
    for run in pristine.runs:
        found = checked(pristine, run, keys=(str(pristine.key),))

        assert (found.whole, found.contradictions) == (True, ()), run
        assert found.signature == signing.key_id(pristine.key)
        assert found.passes("bytes")


@pytest.mark.parametrize("name", FILES)
def test_changed_file_is_named_however_well_hidden(name: str, logged: Logged) -> None:
    run, path, change = FILES[name]
    before = sha256((logged.folder(run) / path).read_bytes())
    logged.edit(run, path, change)
    after = sha256((logged.folder(run) / path).read_bytes())

    found = checked(logged, run)
    assert not found.whole and not found.passes("tolerance")
    assert path in {each.what for each in found.contradictions}

    logged.rewrite_manifest(run)
    found = checked(logged, run)
    [named] = [each for each in found.contradictions if each.what == path and each.claims]
    places = {claim.place: claim.value for claim in named.claims}
    assert places == {f"tag {Tag.DIGESTS}": before, Artifact.MANIFEST: after}
    assert found.whole and not found.passes("tolerance")

    logged.rewrite_tags(run)
    found = checked(logged, run, keys=(str(logged.key),))
    assert any(each.what == path and "manifest.dsse.json has" in each.why for each in found.contradictions)


def test_rewritten_engine_contradicts_the_registry(logged: Logged) -> None:
    logged.edit("accepted", ENGINE, flipped)
    logged.rewrite_manifest("accepted")
    logged.rewrite_tags("accepted")
    [engine] = [each for each in checked(logged, "accepted").contradictions if each.what == "engine"]
    assert any(claim.place.startswith("version 1 of 'conv_net'") for claim in engine.claims)


WRONG = "0" * 64
IN_THE_DATABASE: dict[str, tuple[str, str, str, str | float, str]] = {
    "an error": ("fp16", "metric", "error/scores/max_abs", 1e-9, "metric error/scores/max_abs"),
    "the engine's size": ("fp32", "metric", "build/engine_bytes", 5, "size of the engine"),
    "the engine's digest": ("fp32", "tag", Tag.ENGINE_SHA256, WRONG, "engine"),
    "the digest that a reused engine has": ("reused", "tag", Tag.ENGINE_SHA256, WRONG, "engine"),
    "the spec's digest": ("fp32", "tag", Tag.SPEC_SHA256, WRONG, "spec"),
    "the model's digest": ("fp32", "tag", Tag.MODEL_SHA256, WRONG, "model"),
    "the verdict": ("fp32", "tag", Tag.VERDICT, "bad", "verdict"),
    "the release": ("fp32", "tag", Tag.BACKEND_VERSION, "9.9", f"environment ({Tag.BACKEND_VERSION})"),
    "a param": ("fp16", "param", "precision", "fp32", "param precision"),
    "the registry": ("accepted", "version", Tag.ENGINE_SHA256, WRONG, "engine"),
    "a count": ("campaign", "metric", "iterations/bad", 0.5, "iterations that are bad"),
}
"""What is changed: the run, where, the name and the value; and the fact that must be named."""


@pytest.mark.parametrize("name", IN_THE_DATABASE)
def test_changed_database_value_is_named(name: str, logged: Logged) -> None:
    run, where, changed, value, what = IN_THE_DATABASE[name]
    logged.set(run, where, changed, value)

    [named] = [each for each in checked(logged, run).contradictions if each.what == what and each.claims]
    places = {
        "metric": "the store" if changed.startswith("error/") else f"metric {changed}",
        "param": "the store's params",
        "tag": f"tag {changed}",
        "version": "version 1 of 'conv_net'",
    }
    assert places[where] in {claim.place for claim in named.claims}
    assert len({claim.value for claim in named.claims}) == 2


def test_campaign_table_is_compared_with_iterations(logged: Logged) -> None:
    logged.edit("campaign", Artifact.CAMPAIGN_TABLE, another_table(logged))
    logged.rewrite_manifest("campaign")
    logged.rewrite_tags("campaign")

    parent, child = checked(logged, "campaign"), checked(logged, "iteration")

    assert f"verdict of iteration {logged.runs['iteration']}" in {each.what for each in parent.contradictions}
    [verdict] = [each for each in child.contradictions if each.what == "verdict"]
    assert any(claim.place.startswith(Artifact.CAMPAIGN_TABLE) for claim in verdict.claims)


def test_forged_and_missing_signatures_are_named(
    logged: Logged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = logged.folder("fp32") / Artifact.SIGNATURE
    new_key(tmp_path / "forger.pem", tmp_path / "forger.pub")
    monkeypatch.setenv(signing.KEY_VARIABLE, str(tmp_path / "forger.pem"))
    _, signed = signing.open_envelope(file.read_bytes())
    subjects = {each["name"]: each["digest"]["sha256"] for each in signed["subject"]}
    file.write_bytes(signing.sign(subjects, signed["predicate"]))
    monkeypatch.delenv(signing.KEY_VARIABLE)

    own = (str(logged.key),)
    [forged] = checked(logged, "fp32", keys=own).contradictions
    assert "is not one of the given keys" in forged.why
    assert checked(logged, "fp32", keys=(*own, str(tmp_path / "forger.pub"))).passes("bytes")

    file.unlink()
    [missing] = checked(logged, "fp32", keys=own).contradictions
    assert "is not signed" in missing.why
    # Neither are digests in tags required.
    for tag in (Tag.MANIFEST_SHA256, Tag.DIGESTS):
        logged.execute("DELETE FROM tags WHERE run_uuid = ? AND key = ?", logged.runs["fp32"], tag)
    assert checked(logged, "fp32").passes("bytes")


def test_signature_covers_verdict_and_run(logged: Logged) -> None:
    logged.set("fp32", "tag", Tag.VERDICT, "bad")
    found = checked(logged, "fp32", keys=(str(logged.key),))
    assert f"manifest.dsse.json has good; tag {Tag.VERDICT} has bad" in [each.why for each in found.contradictions]

    # An old run cannot replace a new one, although its signature is valid.
    for path in (Artifact.SIGNATURE, Artifact.MANIFEST):
        (logged.folder("int8") / path).write_bytes((logged.folder("fp16") / path).read_bytes())
    found = checked(logged, "int8", keys=(str(logged.key),))
    assert any(f"it was made for run {logged.runs['fp16']}" in each.why for each in found.contradictions)


def test_private_key_is_never_stored(pristine: Logged) -> None:
    secret = b"".join(pristine.private.read_bytes().splitlines()[1:-1])
    files = [file for file in pristine.root.rglob("*") if file.is_file()]

    assert len(files) > 50
    assert not [file for file in files if secret in file.read_bytes() or b"PRIVATE KEY" in file.read_bytes()]
