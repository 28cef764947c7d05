"""The embedded store: created once by many processes, refused by another MLflow or after a move."""

import multiprocessing
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.forking import run_in_children
from tests.stores import execute
from trtops import errors
from trtops.tracking import location, store
from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker, embedded


def log_one(tracker: MlflowTracker, name: str = "r") -> str:
    with tracked(tracker, "m", name, kind="build") as run:
        run.log_bytes(b"plan", "engine/x.plan")
    return run.id


def test_default_location(monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert location.resolve() == location.Store(database=tmp_path / "mlruns" / "mlflow.db")

    monkeypatch.setenv("TRTOPS_HOME", "home")
    assert location.resolve() == location.Store(database=tmp_path / "home" / "mlflow.db")
    assert location.default_root() == tmp_path / "home"

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere/runs.db")
    assert location.resolve() == location.Store(database=tmp_path / "elsewhere" / "runs.db")
    assert location.default_root() == tmp_path / "elsewhere"

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000/")
    assert location.resolve() == "http://tracking:5000"
    assert location.default_root() == tmp_path / "home"

    address = location.resolve(tmp_path)
    assert address.uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert address.artifacts == tmp_path / "artifacts"
    assert address.artifacts_of("resnet50") == tmp_path / "artifacts" / "resnet50"


def test_other_addresses_are_refused(tmp_path: Path):
    for address in ("postgresql://h/db", "file:///x", "sqlite://", "sqlite:///:memory:", "s3://bucket"):
        with pytest.raises(errors.StoreError, match="mlflow server"):
            location.resolve(address)
    with pytest.raises(errors.StoreError, match="Rename"):
        location.resolve(tmp_path / "100%20")


def test_relative_address_is_made_absolute(monkeypatch, new_store, tmp_path: Path):
    root = new_store(tmp_path / "here" / "mlruns")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlruns/mlflow.db")
    tracker = store.default_tracker()
    monkeypatch.chdir(tmp_path / "there")

    run_id = log_one(tracker)

    assert not list((tmp_path / "there").rglob("*.*"))  # some releases of MLflow make an empty folder
    assert len(list(root.rglob("x.plan"))) == 1
    assert MlflowTracker(root).load(run_id).read_bytes("engine/x.plan") == b"plan"


def test_root_with_spaces_is_opened_once(new_store, tmp_path: Path):
    root = new_store(tmp_path / "my runs #1 日本" / "mlruns")
    tracker = store.open_tracker(root)
    run_id = log_one(tracker)

    assert tracker is store.open_tracker(f"sqlite:///{root}/mlflow.db")
    assert tracker.load(run_id).read_bytes("engine/x.plan") == b"plan"
    assert [item.path for item in tracker.inner._client.list_artifacts(run_id, "engine")] == ["engine/x.plan"]


def test_processes_make_one_store(tmp_path: Path):
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - the children have it ready and so really meet

    gate = multiprocessing.get_context("fork").Barrier(4)
    places = [str(tmp_path / "mlruns"), f"sqlite:///{tmp_path}/mlruns/mlflow.db"]

    def work(i: int) -> None:
        gate.wait()
        tracker = MlflowTracker(places[i % 2])
        (tmp_path / f"seen by {i}").write_text(str(tracker.store.database.stat().st_ino))
        log_one(tracker, str(i))

    run_in_children(work, range(4))
    tracker = MlflowTracker(tmp_path / "mlruns")

    assert len({seen.read_text() for seen in tmp_path.glob("seen by *")}) == 1
    runs = tracker.find("m")
    assert sorted(info.name for info in runs) == [str(i) for i in range(4)]
    assert all(tracker.load(info.id).read_bytes("engine/x.plan") == b"plan" for info in runs)
    assert not list((tmp_path / "mlruns").glob(".mlflow.db.*"))


def test_half_made_database_is_replaced(tmp_path: Path):
    root = tmp_path / "mlruns"
    root.mkdir()
    (root / ".mlflow.db.123").write_bytes(b"half")

    embedded.ensure_store(root)

    assert {file.name for file in root.glob("[!m]*")} - {"artifacts"} == {".init.lock"}
    assert execute(root, "PRAGMA journal_mode") == [("wal",)]


def test_other_files_are_refused_unchanged(tmp_path: Path):
    for content in (b"", b"no database at all" * 100):
        (tmp_path / "mlflow.db").write_bytes(content)

        with pytest.raises(errors.StoreError, match=r"mlflow\.db"):
            MlflowTracker(tmp_path)

        assert (tmp_path / "mlflow.db").read_bytes() == content
    with pytest.raises(errors.StoreError, match="TRTOPS_HOME"):
        embedded.ensure_store(tmp_path / "mlflow.db" / "mlruns")


def test_schema_of_another_release_is_mlflows_affair(new_store, tmp_path: Path):
    root, newer = new_store(tmp_path / "mlruns"), "f4a9b2c7d1e7"
    execute(root, "UPDATE alembic_version SET version_num = ?", newer)

    with pytest.raises(errors.StoreError, match=f"(out-of-date database schema|Can't locate revision).*{newer}"):
        log_one(MlflowTracker(root))


@pytest.mark.parametrize(
    "address", ["databricks", "databricks://profile", "azureml://x.net/ws", "uc:model", "arn:aws:x"]
)
def test_managed_servers_are_refused_by_name(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)

    with pytest.raises(errors.StoreError, match=r"a managed MLflow \(.*http"):
        location.resolve()

    assert not list(tmp_path.iterdir())
    assert location.resolve("./databricks") == location.Store(database=tmp_path / "databricks" / "mlflow.db")


def test_moved_and_copied_stores_are_refused(new_store, tmp_path: Path):
    old = new_store(tmp_path / "old" / "mlruns")
    run_id = log_one(MlflowTracker(old))
    copy = Path(shutil.copytree(old, tmp_path / "copy"))
    with pytest.raises(errors.StoreError, match=str(old)):
        MlflowTracker(copy)

    moved = Path(shutil.move(old, tmp_path / "new place"))
    with pytest.raises(errors.StoreError, match=str(old)):
        MlflowTracker(moved)
    old.symlink_to(moved)  # as the message says
    assert MlflowTracker(old).load(run_id).read_bytes("engine/x.plan") == b"plan"


@pytest.mark.parametrize("table", ["alembic_version", "tags"])
def test_damaged_database_is_reported(table: str, tmp_path: Path) -> None:
    root = tmp_path / "mlruns"
    MlflowTracker(root)
    with closing(sqlite3.connect(root / "mlflow.db")) as database, database:
        database.execute("PRAGMA writable_schema = ON")
        changed = "UPDATE sqlite_master SET name = CAST(x'e8ff' AS TEXT), sql = CAST(x'ffe8' AS TEXT) WHERE name = ?"
        database.execute(changed, (table,))

    with pytest.raises(errors.StoreError, match="cannot be used as an MLflow database"):
        MlflowTracker(root)
