"""A hostile server: nothing is written outside of the download folder, and every request ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import RUN, HostileServer, manifest_of, serving
from trtops import errors
from trtops.tracking.base import StoredRun
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.artifacts import ARTIFACT_HOSTS
from trtops.tracking.schema import Artifact, Tag


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileServer]:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "victim").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TRTOPS_TRACKING_WAIT", "0")
    server = HostileServer(tags={Tag.KIND: "build"}, files={"engine/x.plan": b"plan"})
    server.files[Artifact.MANIFEST] = manifest_of(server.files)
    with serving(server):
        yield server
    assert list((tmp_path / "victim").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"tmp", "victim"}


def read(hostile: HostileServer) -> tuple[StoredRun, bytes]:
    """The run and its engine."""
    stored = MlflowTracker(hostile.address).load(RUN)
    return stored, stored.read_bytes("engine/x.plan")


def test_honest_server_is_read(hostile: HostileServer) -> None:
    assert read(hostile)[1] == b"plan"


def test_digest_that_is_a_path_is_refused(hostile: HostileServer, tmp_path: Path) -> None:
    key = {"engine/x.plan": b"ssh-rsa AAAA"}
    hostile.files |= key | {
        Artifact.MANIFEST: manifest_of(key, sha256=str(tmp_path / "victim"), path="authorized_keys")
    }
    hostile.files["authorized_keys"] = b"ssh-rsa AAAA"

    with pytest.raises(errors.IncompleteRunError, match="no SHA-256"):
        read(hostile)


@pytest.mark.parametrize("run_id", ["{victim}", "../../victim", "", "a" * 65])
def test_id_that_is_a_path_is_refused(hostile: HostileServer, tmp_path: Path, run_id: str) -> None:
    hostile.run_id = run_id.format(victim=tmp_path / "victim")
    tracker = MlflowTracker(hostile.address)

    for reading in (lambda: tracker.load(RUN), lambda: tracker.find("forged"), lambda: tracker.peek(RUN, "a")):
        with pytest.raises(errors.StoreError, match="Do not trust this store"):
            reading()


def test_oversized_download_is_stopped(hostile: HostileServer, tmp_path: Path) -> None:
    tracker = MlflowTracker(hostile.address)
    stored = tracker.load(RUN)
    hostile.endless = True

    with pytest.raises(errors.StoreError, match=r"more of 'engine/x.plan' .* than its size"):
        stored.read_bytes("engine/x.plan")
    assert all(path.stat().st_size < 1 << 21 for path in (tmp_path / "tmp").rglob("*"))


def test_endless_pages_are_refused(hostile: HostileServer) -> None:
    hostile.endless = True

    with pytest.raises(errors.StoreError, match="again and again"):
        MlflowTracker(hostile.address).find("forged")
    with pytest.raises(errors.StoreError, match="again and again"):
        MlflowTracker(hostile.address).find()


def test_artifact_listed_as_folder_is_read(hostile: HostileServer) -> None:
    hostile.listed["engine"] = [("x.plan", 4, True)]
    hostile.listed["engine/x.plan"] = [("y", 4, False)]

    assert read(hostile)[1] == b"plan"


def test_other_artifact_hosts_must_be_allowed(hostile: HostileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter22")
    with serving(HostileServer()) as elsewhere:
        for uri in (f"mlflow-artifacts://localhost:{elsewhere.rpartition(':')[2]}/x", f"http://localhost:1/{RUN}"):
            hostile.artifact_uri = uri
            with pytest.raises(errors.StoreError, match=r"at the host localhost.*TRTOPS_ARTIFACT_HOSTS=localhost"):
                read(hostile)

    monkeypatch.setenv(ARTIFACT_HOSTS, "a,localhost")
    hostile.artifact_uri = f"mlflow-artifacts://localhost:{hostile.address.rpartition(':')[2]}/0/{RUN}/artifacts"
    assert read(hostile)[1] == b"plan"


@pytest.mark.parametrize("uri", ["/etc", "file:///etc", "FILE:/etc", ""])
def test_server_artifacts_on_disk_are_refused(hostile: HostileServer, uri: str) -> None:
    hostile.artifact_uri = uri
    with pytest.raises(errors.StoreError, match="server's own disk"):
        read(hostile)


@pytest.mark.parametrize(
    "junk", [b"", b"[]", b"null", b"<html>hello", b'{"run": 1}', b'{"runs": [[]]}', b'{"run": {"info": {"status": 7}}}']
)
def test_malformed_answers_are_tracking_errors(hostile: HostileServer, junk: bytes) -> None:
    hostile.junk = junk
    tracker = MlflowTracker(hostile.address)

    with pytest.raises(errors.TrackingError):
        tracker.load(RUN)
    for experiment in ("forged", None):
        with contextlib.suppress(errors.TrackingError):
            assert tracker.find(experiment) == []


def test_huge_json_is_not_read(hostile: HostileServer) -> None:
    hostile.listed[""] = [(Artifact.MANIFEST, 1 << 40, False)]
    with pytest.raises(errors.StoreError, match="1099511627776 bytes"):
        read(hostile)
    assert not any(os.fsdecode(path).endswith(Artifact.MANIFEST) for path in hostile.asked)
