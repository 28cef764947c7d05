"""Damaged, pruned and forged runs are skipped with a warning."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from tests.hostile import forge_run, manifest_of, rewrite, write_artifact
from trtops.backend.engines import engine_backend
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.registry.deny import deny_list, pardon
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tactics.denied import DeniedTactic
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import Artifact, Tag

QUICK = ConvertConfig(check=CheckConfig(latency_runs=0, plots="never"))


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> MlflowTracker:
    return MlflowTracker(tmp_path_factory.mktemp("damaged") / "mlruns")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.conv_net().fixed().write(tmp_path)


def convert_seeded(model: Path, tracker: MlflowTracker, seed: int):
    """Convert with a seed: builds with another seed never reuse it."""
    build = BuildConfig(options=OnnxRuntimeOptions(tactic_seed=seed, timing_iterations=1))
    return convert(model, ConvertConfig(build=build, check=QUICK.check), tracker=tracker, experiment="damaged")


def damage(tracker: MlflowTracker, run_id: str, kind: str) -> None:
    root = tracker.store.root
    if kind == "engine changed":
        write_artifact(root, run_id, "engine/engine.ort", b"x")
    elif kind in ("engine pruned", "link"):
        file = next(root.rglob(f"{run_id}/artifacts/engine/engine.ort"))
        file.unlink()
        if kind == "link":
            file.symlink_to("/etc/passwd")
    elif kind == "manifest":
        write_artifact(root, run_id, Artifact.MANIFEST, b'{"artifacts": [{"path": "../x", "size": 1, "sha256": "y"}]}')
    else:
        rewrite(tracker, run_id, kind, b"[" * 100_000 if kind == Artifact.ENGINE_OPTIONS else b'"forged"')


WAYS = ("engine changed", "engine pruned", "link", "manifest", Artifact.SPEC, Artifact.ENGINE_OPTIONS)


@pytest.mark.parametrize(("seed", "kind"), list(enumerate(WAYS)))
def test_damaged_engines_are_built_again(tracker, model, seed, kind, caplog) -> None:
    first = convert_seeded(model, tracker, seed)
    damage(tracker, first.run_id, kind)

    again = convert_seeded(model, tracker, seed)

    assert again.verdict == "good" and again.reused_from is None
    [warning] = [r.message for r in caplog.records if r.levelno == logging.WARNING and "not reused" in r.message]
    assert first.run_id in warning
    assert convert_seeded(model, tracker, seed).reused_from == again.run_id


def test_forged_build_keys_are_ignored(tracker, model, caplog) -> None:
    honest, other = convert_seeded(model, tracker, 100), convert_seeded(model, tracker, 101)
    key = tracker.info(honest.run_id).tags[Tag.BUILD_KEY]
    tracker._client.set_tag(other.run_id, Tag.BUILD_KEY, key)

    assert convert_seeded(model, tracker, 100).reused_from == honest.run_id
    assert f"The engine of run {other.run_id} is not reused" in caplog.text


def test_damaged_deny_list_entries_are_ignored(tracker, model, caplog) -> None:
    environment = engine_backend("onnxruntime").environment()
    machine_tags = {Tag.BACKEND_VERSION: environment.backend_version, Tag.DEVICE_SHA256: environment.device_sha256}
    entry = DeniedTactic(
        backend_version=environment.backend_version, device_sha256=environment.device_sha256, settings=(("a", "b"),)
    )
    data = {Artifact.DENIED: entry.to_json().encode()}
    root = tracker.store.root
    tags = {Tag.KIND: "deny", **machine_tags}
    sound = forge_run(root, data, tags)
    damaged = {
        "bytes": forge_run(root, {Artifact.DENIED: b"{}"}, tags, manifest=manifest_of(data)),
        "content": forge_run(root, {Artifact.DENIED: b'{"choices": 7}'}, tags),
        "manifest": forge_run(root, data, tags, manifest=manifest_of(data, sha256="/tmp")),
        "missing": forge_run(root, {}, tags),
        "half": forge_run(root, data, tags, whole=False),
        "elsewhere": forge_run(root, data, tags, uri="/etc"),
    }

    assert deny_list(tracker, environment).entries == (replace(entry, run=sound),)
    for run_id in damaged.values():
        assert f"trtops runs pardon {run_id}" in caplog.text
    assert convert(model, QUICK, tracker=tracker, experiment="damaged").verdict == "good"

    for run_id in (*damaged.values(), sound):
        pardon(run_id, tracker=tracker, why="damaged")
    caplog.clear()
    assert deny_list(tracker, environment).entries == ()
    assert "pardon" not in caplog.text
