"""A store that somebody else may write to: every command over every forged run ends, runs nothing of it, and writes nothing outside."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models
from tests.hostile import RUN, HostileServer, forge_run, manifest_of, serving
from trtops.cli.main import main
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.judging.command import CommandCheck
from trtops.ops.judging.judgement import CheckConfig
from trtops.record import sha256
from trtops.tracking.mlflow.embedded import ensure_store, relocate
from trtops.tracking.schema import Artifact, Tag

KINDS_READ = ("build", "debug_build", "iteration", "proof", "deny", "promote")
"""Those of which some command reads more than what all runs have."""

LOOKING = (
    "runs show",
    "runs audit",
    "runs promote",
    "runs pardon",
    "inspect run",
    "inspect calibration",
    "debug build",
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("empty") / "mlruns"
    ensure_store(root)
    return root


@pytest.fixture
def place(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a store, a working folder with a model, and a victim, which must not change."""
    shutil.copytree(template, tmp_path / "mlruns")
    relocate(tmp_path / "mlruns")
    for name in ("work", "victim", "tmp", "outbox"):
        (tmp_path / name).mkdir()
    (tmp_path / "victim" / "authorized_keys").write_text("mine")
    models.conv_net().write(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TRTOPS_TRACKING_WAIT", "0")
    monkeypatch.setenv("TRTOPS_OUTBOX", str(tmp_path / "outbox"))
    yield tmp_path
    # What a server sent lies in a temporary folder until this process ends.
    allowed = {"mlruns", "work", "victim", "tmp", "outbox"}
    assert {path.name for path in tmp_path.iterdir()} == allowed
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["authorized_keys"]
    assert (tmp_path / "victim" / "authorized_keys").read_text() == "mine"


def forged_runs(place: Path) -> list[str]:
    """A run for each way to forge one that is known, of every kind."""
    root, victim, note = place / "mlruns", place / "victim", place / "ran"
    script = place / "work" / "evil.py"
    script.write_text(f"open({str(note)!r}, 'w')\ndef load_data():\n    return []\n")
    model = place / "work" / "conv_net.onnx"
    evil = DebugBuildConfig(
        check=CheckConfig(data=str(script)),
        calibration_data=str(script),
        command=CommandCheck(command=(sys.executable, str(script), "{engine}"), artifact=str(victim / "engine")),
    )
    campaign = {Artifact.CAMPAIGN: evil.to_json().encode()}
    of_model = {Tag.MODEL_PATH: str(model), Tag.MODEL_SHA256: "0" * 64}
    junk = {
        path: b"[" * 100_000
        for path in (Artifact.SPEC, Artifact.ENVIRONMENT, Artifact.ENGINE_OPTIONS, Artifact.DENIED, Artifact.ACCURACY)
    }
    paths = {"engine/engine.ort": b"plan", Artifact.SPEC: b"{}"}
    runs = []
    for kind in KINDS_READ:
        tags = {Tag.KIND: kind, Tag.VERDICT: "good", Tag.PROOF: "confirmed", Tag.ITERATION: "9" * 5000, **of_model}
        runs.append(forge_run(root, campaign | junk, tags))
    tags = {Tag.KIND: "build", Tag.VERDICT: "good", **of_model}
    runs += [
        forge_run(root, paths, tags, manifest=manifest_of(paths, path="../../../../victim/authorized_keys")),
        forge_run(root, paths, tags, manifest=manifest_of(paths, sha256=str(victim), path="authorized_keys")),
        forge_run(root, paths, tags, manifest=manifest_of(paths, size=1 << 60)),
        forge_run(root, paths, tags, manifest=b"\xff\xfe"),
        forge_run(root, paths, tags, uri=str(victim)),
        forge_run(root, paths, tags, uri=f"mlflow-artifacts:/../../{victim.name}"),
        forge_run(root, paths, tags | {Tag.REUSED_FROM: "../../victim"}),
        forge_run(root, {}, tags | {Tag.VARIED: "{", Tag.OWNER: "{}", "trtops.text.x.y": "z"}),
        forge_run(root, campaign, {Tag.KIND: "debug_build", **of_model}, status="RUNNING", whole=False),
    ]
    linked = forge_run(root, paths, tags)
    [folder] = root.rglob(f"{linked}/artifacts")
    (folder / "engine" / "engine.ort").unlink()
    (folder / "engine" / "engine.ort").symlink_to(victim / "authorized_keys")
    (folder / "out").symlink_to(victim)
    looped = forge_run(root, campaign, tags | {Tag.KIND: "iteration"})
    _set_tag(root, looped, "mlflow.parentRunId", looped)
    return [*runs, linked, looped]


def _set_tag(root: Path, run_id: str, name: str, value: str) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(root / "mlflow.db")) as database, database:
        database.execute("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", (name, value, run_id))


def commands_on(run: str) -> list[list[str]]:
    """Every command that reads a run."""
    return [
        ["runs", "show", run],
        ["runs", "audit", run],
        ["runs", "compare", run, run],
        ["runs", "judge", run, "--atol", "1"],
        ["runs", "promote", run],
        ["runs", "deny", run],
        ["runs", "pardon", run, "--why", "forged"],
        ["inspect", "run", run],
        ["inspect", "calibration", f"run:{run}"],
        ["debug", "noise", run],
        ["debug", "prove", run],
        ["debug", "bisect", run],
        ["debug", "build", "--resume", run],
        ["compare", f"run:{run}", "conv_net.onnx"],
    ]


ON_STORES = (
    ["runs", "list"],
    ["runs", "list", "--kind", "deny", "--json"],
    ["runs", "resolve", "conv_net.onnx"],
    ["store", "check", "--root"],
    ["store", "upload", "--root"],
)


BUILDING = ["convert", "conv_net.onnx", "--convert-to", "ort", "-o", "o.ort", "--experiment", "Default"]


def run_all(place: Path, runs: list[str], store: str, caplog: pytest.LogCaptureFixture, building: bool) -> int:
    """Run every command, on all but the first runs those that look into them; returns how many that were."""
    lines = [*ON_STORES, *([BUILDING] if building else [])]
    for number, run in enumerate(runs):
        every = commands_on(run)
        lines += every if number < len(KINDS_READ) else [line for line in every if " ".join(line[:2]) in LOOKING]
    for line in lines:
        words = [*line, store] if line[-1] == "--root" else [*line, "--store", store]
        code = main(words)
        assert code in (0, 1, 2, 3), words
        assert not (place / "ran").exists(), words
        assert (place / "victim" / "authorized_keys").read_text() == "mine", words
        mistakes = [r for r in caplog.records if r.exc_info and "mistake in trtops" in r.getMessage()]
        assert not mistakes, (words, mistakes[0].exc_text or logging.Formatter().formatException(mistakes[0].exc_info))
        caplog.clear()
    return len(lines)


def test_all_commands_over_a_store_in_which_runs_were_forged(place: Path, caplog, capfd) -> None:
    runs = forged_runs(place)

    assert run_all(place, runs, str(place / "mlruns"), caplog, building=True) > 150


@pytest.mark.parametrize("how", ["id", "digest", "path", "scripts", "endless", "elsewhere", "junk", "listing"])
def test_all_commands_over_a_server_that_means_harm(place: Path, caplog, capfd, how: str) -> None:
    script = place / "work" / "evil.py"
    script.write_text(f"open({str(place / 'ran')!r}, 'w')\ndef load_data():\n    return []\n")
    config = DebugBuildConfig(check=CheckConfig(data=str(script))).to_json().encode()
    files = {"engine/engine.ort": b"plan", Artifact.CAMPAIGN: config, Artifact.DENIED: b"{}"}
    tags = {Tag.KIND: "debug_build", Tag.VERDICT: "good", Tag.MODEL_PATH: "conv_net.onnx", Tag.PROOF: "confirmed"}
    server = HostileServer(files=files | {Artifact.MANIFEST: manifest_of(files)}, tags=tags)
    if how == "id":
        server.run_id = str(place / "victim")
    elif how == "digest":
        server.files[Artifact.MANIFEST] = manifest_of(files, sha256=str(place / "victim"), path="authorized_keys")
    elif how == "path":
        server.files[Artifact.MANIFEST] = manifest_of(files, path=str(place / "victim" / "authorized_keys"))
    elif how == "endless":
        server.endless = True
    elif how == "elsewhere":
        server.artifact_uri = str(place / "victim")
    elif how == "junk":
        server.junk = json.dumps({"run": {"info": {"run_id": 7}}, "runs": 1, "experiments": "x"}).encode()
    elif how == "listing":
        server.listed[""] = [("../../victim/authorized_keys", 1, False), (Artifact.MANIFEST, 1 << 50, False)]
    with serving(server) as address:
        building = how == "digest"
        assert run_all(place, [RUN], address, caplog, building) == len(ON_STORES) + len(commands_on(RUN)) + building


def test_the_doubles_are_forged_as_they_say(place: Path) -> None:
    runs = forged_runs(place)

    assert len(set(runs)) == len(runs) == len(KINDS_READ) + 11
    assert sha256(b"plan") in manifest_of({"a": b"plan"}).decode() and os.getcwd() == str(place / "work")
