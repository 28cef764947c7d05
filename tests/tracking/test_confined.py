"""Data from a store never becomes a path outside of the run: manifests, listings, links and addresses."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository

from trtops import errors
from trtops.record import sha256
from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.run import read_manifest

HOSTILE = ("../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a\0b", "..\\x")


@pytest.fixture
def embedded(new_store: Callable[[Path], Path], tmp_path: Path) -> MlflowTracker:
    return MlflowTracker(new_store(tmp_path / "mlruns"))


def manifest(path: str, digest: str = "0" * 64, size: int = 1) -> bytes:
    return json.dumps({"artifacts": [{"path": path, "size": size, "sha256": digest}]}).encode()


@pytest.mark.parametrize("path", HOSTILE)
def test_manifest_paths_must_stay_in_the_run(path: str) -> None:
    with pytest.raises(errors.IncompleteRunError, match="damaged"):
        read_manifest("run", manifest(path))


@pytest.mark.parametrize("digest", ["../../../../tmp/x", "/tmp", "", "0" * 63, "G" * 64])
def test_manifest_digests_are_checked(digest: str) -> None:
    with pytest.raises(errors.IncompleteRunError, match="SHA-256"):
        read_manifest("run", manifest("a", digest))
    with pytest.raises(errors.IncompleteRunError):
        read_manifest("run", manifest("a", size=-1))


@pytest.mark.parametrize("path", [*HOSTILE, "elsewhere/x", "engine"])
def test_server_listing_must_stay_in_its_folder(server: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = MlflowTracker(server)
    with tracked(tracker, "confined", "r", kind="build") as run:
        run.log_text("plan", "engine/x.plan")
    hostile = SimpleNamespace(path=path, is_dir=False)
    listed = HttpArtifactRepository.list_artifacts
    monkeypatch.setattr(
        HttpArtifactRepository,
        "list_artifacts",
        lambda self, folder: [hostile] if folder else listed(self, folder),  # type: ignore[no-untyped-call]
    )

    with pytest.raises(errors.StoreError, match="leads out of there"):
        tracker._files(tracker._entity(run.id)).entries()

    fetched = {path.name for path in tracker._connection.downloads.folder().rglob("*")}
    assert fetched <= {run.id, "manifest.json"}


def test_endless_listing_is_refused(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = MlflowTracker(server)
    run = tracker.start("confined", "r", kind="build")
    monkeypatch.setattr(
        HttpArtifactRepository,
        "list_artifacts",
        lambda self, folder: [SimpleNamespace(path=f"{folder}/a" if folder else "a", is_dir=True)],
    )

    with pytest.raises(errors.StoreError, match="Do not trust"):
        tracker._files(tracker._entity(run.id)).entries()


def test_links_out_of_a_run_are_refused(embedded: MlflowTracker, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "folder").mkdir()
    run = embedded.start("m", "r", kind="build")
    run.log_bytes(b"plan", "engine/x.plan")
    place = Path(embedded._entity(run.id).info.artifact_uri)
    (place / "link").symlink_to(tmp_path / "secret")
    (place / "out").symlink_to(tmp_path / "folder")

    with pytest.raises(errors.StoreError, match="link"):
        embedded.peek(run.id, "link")
    with pytest.raises(errors.StoreError, match="link"):
        run.log_bytes(b"x", "out/x")
    assert list((tmp_path / "folder").iterdir()) == []
    run.finish()
    (place / "engine" / "x.plan").unlink()
    (place / "engine" / "x.plan").symlink_to(tmp_path / "secret")
    with pytest.raises(errors.StoreError, match="link"):
        embedded.load(run.id).read_bytes("engine/x.plan")


@pytest.mark.parametrize(
    "uri",
    [
        "mlflow-artifacts:/../../../etc",
        "/etc",
        "file:///etc",
        "mlflow-artifacts:/link",
        "mlflow-artifacts:/link/{run}",
        "/etc\0",
    ],
)
def test_artifact_address_outside_the_store_is_refused(embedded: MlflowTracker, uri: str) -> None:
    run = embedded.start("m", "r", kind="build")
    with sqlite3.connect(embedded.store.database) as database:
        database.execute("UPDATE runs SET artifact_uri = ?", (uri.format(run=run.id),))
    database.close()
    embedded.store.artifacts.mkdir(exist_ok=True)
    (embedded.store.artifacts / "link").symlink_to("/etc")

    for reaching in (
        lambda: embedded.peek(run.id, "passwd"),
        lambda: embedded.close(run.id, "why"),
        lambda: embedded.reopen(run.id),
        lambda: embedded.load(run.id),
    ):
        with pytest.raises(errors.StoreError, match="leads out of the store"):
            reaching()


def test_linked_lock_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "mlruns").mkdir()
    (tmp_path / "mlruns" / ".init.lock").symlink_to(tmp_path / "victim")

    with pytest.raises(errors.StoreError):
        MlflowTracker(tmp_path / "mlruns")

    assert (tmp_path / "victim").read_text() == "precious"


def test_file_of_wrong_size_is_not_read(embedded: MlflowTracker) -> None:
    with tracked(embedded, "m", "r", kind="build") as run:
        run.log_bytes(b"plan", "engine/x.plan")
    place = Path(embedded._entity(run.id).info.artifact_uri)
    os.truncate(place / "engine" / "x.plan", 1 << 42)  # sparse: it takes no room

    with pytest.raises(errors.IncompleteRunError, match="4398046511104 bytes"):
        embedded.load(run.id).read_bytes("engine/x.plan")
    os.truncate(place / "manifest.json", 1 << 42)
    with pytest.raises(errors.StoreError, match="trtops did not write it"):
        embedded.load(run.id)


def test_changed_engine_is_not_deserialized(
    embedded: MlflowTracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests import models
    from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
    from trtops.ops.engines.convert import ConvertConfig, convert
    from trtops.ops.evaluation.check import CheckConfig
    from trtops.tracking import builds

    quick = ConvertConfig(check=CheckConfig(latency_runs=0, plots="never"))
    result = convert(models.conv_net().write(tmp_path), quick, tracker=embedded)
    place = Path(embedded._entity(result.run_id).info.artifact_uri)
    engine = place / "engine" / "engine.ort"
    data = bytearray(engine.read_bytes())
    data[len(data) // 2] ^= 1
    engine.write_bytes(data)
    loaded: list[object] = []
    monkeypatch.setattr(OnnxRuntimeBackend, "runner", lambda self, engine: loaded.append(engine))

    with pytest.raises(errors.IncompleteRunError, match="other content than its manifest says"):
        builds.load_build(embedded.load(result.run_id))
    assert loaded == [] and result.engine_sha256 != sha256(bytes(data))


def test_damaged_row_is_skipped(embedded: MlflowTracker, tmp_path: Path, caplog) -> None:
    runs = []
    for name in ("whole", "odd"):
        with tracked(embedded, "confined", name, kind="build") as run:
            runs.append(run.id)
    with sqlite3.connect(tmp_path / "mlruns" / "mlflow.db") as database:
        database.execute("UPDATE runs SET start_time = 'soon' WHERE run_uuid = ?", (runs[1],))
    database.close()

    assert [info.id for info in embedded.find("confined")] == runs[:1]
    assert f"Skipped: Run {runs[1]}" in caplog.text
    with pytest.raises(errors.IncompleteRunError, match="another program than MLflow wrote it"):
        embedded.info(runs[1])
