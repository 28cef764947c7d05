"""Data from a store or a hostile server never becomes a path outside of the run, and every request ends."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository

from tests.hostile import RUN, HostileServer, manifest_of, serving
from tests.stores import execute
from trtops import errors
from trtops.record import sha256
from trtops.tracking.base import StoredRun, tracked
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.artifacts import ARTIFACT_HOSTS
from trtops.tracking.reading import read_manifest
from trtops.tracking.schema import Artifact, Tag

HOSTILE = ("../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a\0b", "..\\x")


@pytest.fixture
def embedded(new_store: Callable[[Path], Path], tmp_path: Path) -> MlflowTracker:
    return MlflowTracker(new_store(tmp_path / "mlruns"))


def test_manifests_name_only_files_of_the_run() -> None:
    for path in HOSTILE:
        with pytest.raises(errors.IncompleteRunError, match="damaged"):
            read_manifest("run", manifest_of({path: b"x"}))
    for digest in ("../../../../tmp/x", "/tmp", "", "0" * 63, "G" * 64):
        with pytest.raises(errors.IncompleteRunError, match="SHA-256"):
            read_manifest("run", manifest_of({"a": b"x"}, sha256=digest))
    with pytest.raises(errors.IncompleteRunError):
        read_manifest("run", manifest_of({"a": b"x"}, size=-1))


def test_links_out_of_a_run_are_refused(embedded: MlflowTracker, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "folder").mkdir()
    run = embedded.start("m", "r", kind="build")
    run.log_bytes(b"plan", "engine/x.plan")
    run_folder = Path(embedded._entity(run.id).info.artifact_uri)
    (run_folder / "link").symlink_to(tmp_path / "secret")
    (run_folder / "out").symlink_to(tmp_path / "folder")

    with pytest.raises(errors.StoreError, match="link"):
        embedded.peek(run.id, "link")
    with pytest.raises(errors.StoreError, match="link"):
        run.log_bytes(b"x", "out/x")
    assert list((tmp_path / "folder").iterdir()) == []
    run.finish()
    (run_folder / "engine" / "x.plan").unlink()
    (run_folder / "engine" / "x.plan").symlink_to(tmp_path / "secret")
    with pytest.raises(errors.StoreError, match="link"):
        embedded.load(run.id).read_bytes("engine/x.plan")


@pytest.mark.parametrize(
    "uri", ["mlflow-artifacts:/../../../etc", "/etc", "file:///etc", "mlflow-artifacts:/link/{run}", "/etc\0"]
)
def test_artifact_address_outside_the_store_is_refused(embedded: MlflowTracker, uri: str) -> None:
    run = embedded.start("m", "r", kind="build")
    execute(embedded.store.root, "UPDATE runs SET artifact_uri = ?", uri.format(run=run.id))
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
    run_folder = Path(embedded._entity(run.id).info.artifact_uri)
    os.truncate(run_folder / "engine" / "x.plan", 1 << 42)  # sparse: it takes no room

    with pytest.raises(errors.IncompleteRunError, match="4398046511104 bytes"):
        embedded.load(run.id).read_bytes("engine/x.plan")
    os.truncate(run_folder / "manifest.json", 1 << 42)
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
    run_folder = Path(embedded._entity(result.run_id).info.artifact_uri)
    engine = run_folder / "engine" / "engine.ort"
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
    execute(tmp_path / "mlruns", "UPDATE runs SET start_time = 'soon' WHERE run_uuid = ?", runs[1])

    assert [info.id for info in embedded.find("confined")] == runs[:1]
    assert f"Skipped: Run {runs[1]}" in caplog.text
    with pytest.raises(errors.IncompleteRunError, match="another program than MLflow wrote it"):
        embedded.info(runs[1])


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


def test_dripping_server_is_given_up(hostile: HostileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests import models
    from trtops.ops.engines.convert import ConvertConfig, convert
    from trtops.ops.evaluation.check import CheckConfig
    from trtops.tracking.offline import OfflineTracker
    from trtops.tracking.spool import Spool

    inner = MlflowTracker(hostile.address)
    stored = inner.load(RUN)
    hostile.drips = True
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with pytest.raises(errors.TrackingUnavailableError, match=r"did not answer: .* not complete within 1 s"):
        stored.read_bytes("engine/x.plan")
    tracker = OfflineTracker(inner, Spool(tmp_path / "tmp" / "spool"))
    model = models.identity().write(tmp_path / "tmp")
    result = convert(model, ConvertConfig(check=CheckConfig(latency_runs=0, plots="never")), tracker=tracker)

    assert result.verdict == "good" and [run.id for run in tracker.spool.runs()] == [result.run_id]


def test_endless_pages_are_refused(hostile: HostileServer) -> None:
    hostile.endless = True

    for experiment in ("forged", None):
        with pytest.raises(errors.StoreError, match="again and again"):
            MlflowTracker(hostile.address).find(experiment)


@pytest.mark.parametrize("path", [*HOSTILE, "elsewhere/x", "engine", "{folder}/endless"])
def test_listing_must_stay_in_its_folder(hostile: HostileServer, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def listing(repository: HttpArtifactRepository, folder: str | None) -> list[SimpleNamespace]:
        return [SimpleNamespace(path=path.format(folder=folder) if folder else "engine", is_dir=True)]

    # Its own check would refuse some of these; older releases have none.
    monkeypatch.setattr(HttpArtifactRepository, "list_artifacts", listing)
    tracker = MlflowTracker(hostile.address)

    with pytest.raises(errors.StoreError, match=r"leads out of there.* Do not trust"):
        tracker._files(tracker._entity(RUN)).entries()

    assert list(tracker._connection.downloads.folder().iterdir()) == []


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
    assert not any(os.fsdecode(path).endswith(Artifact.MANIFEST) for path in hostile.requested_paths)
