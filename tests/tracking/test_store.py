"""The embedded store: made once by many, never changed by another MLflow, noticed when moved, cleared of dead runs."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.forking import ForkedProcess
from trtops import errors
from trtops.tracking import location, store
from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker, embedded, known_revisions

fork = multiprocessing.get_context("fork")


def log_one(tracker: MlflowTracker, name: str = "r") -> str:
    with tracked(tracker, "m", name, kind="build") as run:
        run.log_bytes(b"plan", "engine/x.plan")
    return run.id


def revision(root: Path, change_to: str | None = None) -> str:
    with closing(sqlite3.connect(root / "mlflow.db")) as database, database:
        if change_to:
            database.execute("UPDATE alembic_version SET version_num = ?", (change_to,))
        return database.execute("SELECT version_num FROM alembic_version").fetchone()[0]


# Where it is


def test_the_default_is_mlruns_here_then_trtops_home_then_mlflows_own_variable(monkeypatch, tmp_path: Path):
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


def test_everything_lies_under_one_root(tmp_path: Path):
    place = location.resolve(tmp_path)

    assert place.uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert place.artifacts == tmp_path / "artifacts"
    assert place.artifacts_of("resnet50") == tmp_path / "artifacts" / "resnet50"


@pytest.mark.parametrize(
    "address", ["postgresql://host/db", "file:///x", "sqlite://", "sqlite:///:memory:", "s3://bucket", "databricks:x"]
)
def test_an_address_of_another_kind_is_refused_with_what_to_do(address: str):
    with pytest.raises(errors.StoreError, match="mlflow server"):
        location.resolve(address)


def test_a_root_whose_path_mlflow_would_change_is_refused(tmp_path: Path):
    with pytest.raises(errors.StoreError, match="Rename"):
        location.resolve(tmp_path / "100%20")


def test_a_relative_address_is_made_absolute_once(monkeypatch, new_store, tmp_path: Path):
    root = new_store(tmp_path / "here" / "mlruns")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlruns/mlflow.db")
    tracker = store.default_tracker()
    monkeypatch.chdir(tmp_path / "there")

    run_id = log_one(tracker)

    assert list((tmp_path / "there").iterdir()) == []
    assert len(list(root.rglob("x.plan"))) == 1
    assert MlflowTracker(root).load(run_id).read_bytes("engine/x.plan") == b"plan"


def test_a_tracker_is_opened_once_per_process_and_place(new_store, tmp_path: Path):
    root = new_store(tmp_path / "mlruns")

    assert store.open_tracker(root) is store.open_tracker(f"sqlite:///{root}/mlflow.db")


def test_a_root_with_spaces_and_other_scripts_works(new_store, tmp_path: Path):
    tracker = MlflowTracker(new_store(tmp_path / "my runs #1 日本" / "mlruns"))
    run_id = log_one(tracker)

    assert tracker.load(run_id).read_bytes("engine/x.plan") == b"plan"
    assert [item.path for item in tracker._client.list_artifacts(run_id, "engine")] == ["engine/x.plan"]


# Made


def test_eight_processes_opening_a_new_store_at_once_all_log_to_it(tmp_path: Path):
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - the children have it ready and so really meet

    gate = fork.Barrier(8)
    places = [str(tmp_path / "mlruns"), f"sqlite:///{tmp_path}/mlruns/mlflow.db"]

    def work(i: int) -> None:
        gate.wait()
        tracker = MlflowTracker(places[i % 2])
        (tmp_path / f"seen by {i}").write_text(str(tracker.store.database.stat().st_ino))
        log_one(tracker, str(i))

    children = [ForkedProcess(target=work, args=(i,)) for i in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    tracker = MlflowTracker(tmp_path / "mlruns")

    assert [child.exitcode for child in children] == [0] * 8
    assert len({seen.read_text() for seen in tmp_path.glob("seen by *")}) == 1
    runs = tracker.find("m")
    assert sorted(info.name for info in runs) == [str(i) for i in range(8)]
    assert all(tracker.load(info.id).read_bytes("engine/x.plan") == b"plan" for info in runs)
    assert not list((tmp_path / "mlruns").glob(".mlflow.db.*"))


def test_what_a_killed_maker_left_is_no_store_and_is_cleared(tmp_path: Path):
    root = tmp_path / "mlruns"
    root.mkdir()
    (root / ".mlflow.db.123").write_bytes(b"half")

    embedded.ensure_store(root)

    assert sorted(file.name for file in root.glob("[!m]*")) == [".init.lock", ".reserve"]
    with closing(sqlite3.connect(root / "mlflow.db")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes):
    (tmp_path / "mlflow.db").write_bytes(content)

    with pytest.raises(errors.StoreError, match=r"mlflow\.db"):
        MlflowTracker(tmp_path)

    assert (tmp_path / "mlflow.db").read_bytes() == content


def test_a_store_that_cannot_be_made_says_so(tmp_path: Path):
    (tmp_path / "file").write_text("x")

    with pytest.raises(errors.StoreError, match="TRTOPS_HOME"):
        embedded.ensure_store(tmp_path / "file" / "mlruns")


# Of another MLflow


def test_a_store_of_a_newer_mlflow_is_refused_untouched(new_store, tmp_path: Path):
    root = new_store(tmp_path / "mlruns")
    revision(root, change_to="f4a9b2c7d1e6")  # MLflow 3.18's
    before = (root / "mlflow.db").read_bytes()

    with pytest.raises(errors.StoreVersionError, match=r"newer MLflow wrote it.*Install that release"):
        MlflowTracker(root)
    with pytest.raises(errors.StoreVersionError, match="newer"):
        embedded.upgrade(root)

    assert (root / "mlflow.db").read_bytes() == before
    assert not list(root.glob("*backup*"))


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A store of the MLflow before, with an experiment in it."""
    import sqlalchemy
    from alembic import command
    from mlflow.store.db.utils import _get_alembic_config
    from mlflow.store.tracking.dbmodels.initial_models import Base

    root = tmp_path / "mlruns"
    root.mkdir()
    engine = sqlalchemy.create_engine(f"sqlite:///{root}/mlflow.db")
    Base.metadata.create_all(engine)
    config = _get_alembic_config(str(engine.url))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, known_revisions()[1])
        connection.exec_driver_sql(
            "INSERT INTO experiments (experiment_id, name, artifact_location, lifecycle_stage) VALUES (7, 'old', ?, 'active')",
            (f"{root}/artifacts/old",),
        )
    engine.dispose()
    return root


def test_an_older_store_is_refused_untouched_and_upgraded_with_a_backup_when_told_to(older: Path):
    before = (older / "mlflow.db").read_bytes()
    with pytest.raises(errors.StoreVersionError, match=f"python -m trtops.tracking.store upgrade --root {older}"):
        MlflowTracker(older)
    assert (older / "mlflow.db").read_bytes() == before

    backup = embedded.upgrade(older)

    assert backup is not None
    with closing(sqlite3.connect(backup)) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchone() == (known_revisions()[1],)
        assert database.execute("SELECT name FROM experiments").fetchall() == [("old",)]
    tracker = MlflowTracker(older)
    assert tracker._known_experiment("old") == ["7"]
    log_one(tracker)
    assert embedded.upgrade(older) is None


def test_an_upgrade_that_fails_leaves_the_store_as_it_was(older: Path):
    oldest = known_revisions()[-1]
    revision(older, change_to=oldest)  # its migrations will meet tables that are there already

    with pytest.raises(errors.StoreError, match="is as it was"):
        embedded.upgrade(older)

    assert revision(older) == oldest
    with closing(sqlite3.connect(older / "mlflow.db")) as database:
        assert database.execute("SELECT name FROM experiments").fetchall() == [("old",)]
        assert not database.execute("SELECT name FROM sqlite_master WHERE name LIKE '_alembic_tmp%'").fetchall()


# Moved


def test_a_moved_store_is_noticed_and_repaired_by_one_command(new_store, tmp_path: Path):
    run_id = log_one(MlflowTracker(new_store(tmp_path / "old" / "mlruns")))
    (tmp_path / "new place").mkdir()
    root = Path(shutil.move(tmp_path / "old" / "mlruns", tmp_path / "new place" / "mlruns"))

    with pytest.raises(errors.StoreMovedError) as raised:
        MlflowTracker(root)
    assert str(tmp_path / "old" / "mlruns") in str(raised.value)
    _, *command = shlex.split(str(raised.value).partition("point here by: ")[2])
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)

    assert done.stdout == "3 addresses rewritten.\n"
    tracker = MlflowTracker(root)
    assert tracker.load(run_id).read_bytes("engine/x.plan") == b"plan"
    assert [item.path for item in tracker._client.list_artifacts(run_id, "engine")] == ["engine/x.plan"]
    log_one(tracker)
    assert not (tmp_path / "old" / "mlruns").exists()
    assert embedded.relocate(root) == 0


def test_a_copy_does_not_write_into_the_original(new_store, tmp_path: Path):
    original = new_store(tmp_path / "mlruns")
    MlflowTracker(original)
    copy = Path(shutil.copytree(original, tmp_path / "copy"))

    with pytest.raises(errors.StoreMovedError):
        MlflowTracker(copy)


def test_every_kind_of_address_moves_and_others_stay(new_store, tmp_path: Path):
    root = new_store(tmp_path / "a b")
    elsewhere = f"{tmp_path}/a bc/artifacts/x"
    with closing(sqlite3.connect(root / "mlflow.db")) as database, database:
        for name, place in (
            ("path", f"{root}/artifacts/x"),
            ("uri", f"{root.as_uri()}/artifacts/x"),
            ("sibling", elsewhere),
            ("bucket", "s3://bucket/x"),
        ):
            database.execute(
                "INSERT INTO experiments (name, artifact_location, workspace) VALUES (?, ?, 'default')", (name, place)
            )
    moved = Path(shutil.move(root, tmp_path / "c"))
    embedded.relocate(moved)

    with closing(sqlite3.connect(moved / "mlflow.db")) as database:
        assert dict(database.execute("SELECT name, artifact_location FROM experiments")) == {
            "Default": f"{moved}/artifacts/0",
            "path": f"{moved}/artifacts/x",
            "uri": f"{moved.as_uri()}/artifacts/x",
            "sibling": elsewhere,
            "bucket": "s3://bucket/x",
        }


def test_a_store_reached_by_a_link_has_not_moved(new_store, tmp_path: Path):
    root = new_store(tmp_path / "mlruns")
    (tmp_path / "link").symlink_to(root)

    assert MlflowTracker(tmp_path / "link").store == location.Store(database=root / "mlflow.db")


def test_a_database_that_plain_mlflow_made_elsewhere_can_be_used(new_store, tmp_path: Path):
    root = new_store(tmp_path / "mlruns")
    with closing(sqlite3.connect(root / "mlflow.db")) as database, database:
        database.execute("UPDATE experiments SET artifact_location = '/somewhere/mlruns/0'")

    log_one(MlflowTracker(root))


# Dead runs


def test_the_runs_of_a_killed_process_are_found_and_closed(new_store, tmp_path: Path, capsys):
    root = new_store(tmp_path / "mlruns")
    tracker = MlflowTracker(root)
    mine = tracker.start("m", "mine", kind="build")

    def leave() -> None:
        tracker.start("m", "left", kind="build")
        os._exit(9)

    child = ForkedProcess(target=leave)
    child.start()
    child.join()
    assert sorted(info.name for info in tracker.find(status="running")) == ["left", "mine"]

    assert store.main(["reap", "--root", str(root)]) == 0

    assert "1 runs closed." in capsys.readouterr().out
    assert [info.id for info in tracker.find(status="running")] == [mine.id]
    assert [info.name for info in tracker.find(status="killed")] == ["left"]
    assert store.reap(tracker) == []


def test_the_commands_explain_themselves_and_report_errors(tmp_path: Path, capsys):
    with pytest.raises(SystemExit):
        store.main(["--help"])
    assert "relocate" in capsys.readouterr().out

    assert store.main(["upgrade", "--root", str(tmp_path)]) == 3
    assert "mlflow.db" in capsys.readouterr().err
    assert store.main(["relocate", "--root", "http://tracking:5000"]) == 3
    assert "is a server" in capsys.readouterr().err


@pytest.mark.parametrize("table", ["alembic_version", "tags"])
def test_a_database_whose_tables_have_names_that_are_no_text_is_said_to_be_damaged(table: str, tmp_path: Path) -> None:
    root = tmp_path / "mlruns"
    MlflowTracker(root)
    with closing(sqlite3.connect(root / "mlflow.db")) as database, database:
        database.execute("PRAGMA writable_schema = ON")
        changed = "UPDATE sqlite_master SET name = CAST(x'e8ff' AS TEXT), sql = CAST(x'ffe8' AS TEXT) WHERE name = ?"
        database.execute(changed, (table,))

    with pytest.raises(errors.StoreError, match="cannot be used as an MLflow database"):
        MlflowTracker(root)
