"""Store checks find orphans in both directions, half-written files, and leftovers of dead processes."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import is_gone, until
from trtops import errors
from trtops.system import locks, processes
from trtops.tracking import owner, store
from trtops.tracking.base import tracked
from trtops.tracking.check import check_store, reap, remove_leftovers
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.schema import Tag
from trtops.tracking.spool import Spool

LONG_AGO = 1_000_000_000
DEAD = replace(owner.current(), pid=2**22 + 1, started=1)


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders for temporary files and locks without those of other tests, and only left processes started here."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(locks, "_PLACE", folder)
    all_left = processes.left_processes
    monkeypatch.setattr(
        processes,
        "left_processes",
        lambda: [each for each in all_left() if each.environ().get("TMPDIR") == str(folder)],
    )
    yield folder
    tempfile.tempdir = None


@pytest.fixture
def root(new_store: Callable[[Path], Path], tmp_path: Path) -> Path:
    return new_store(tmp_path / "mlruns")


@pytest.fixture
def tracker(root: Path, tmp_path: Path) -> OfflineTracker:
    return OfflineTracker(MlflowTracker(root), Spool(tmp_path / "spool"))


def log_one(tracker: OfflineTracker, name: str) -> tuple[str, Path]:
    with tracked(tracker, "m", name, kind="build") as run:
        run.log_bytes(b"plan", "engine/x.plan")
    return run.id, tracker.store.artifacts / "m" / run.id


def found(tracker: OfflineTracker, **options: Any) -> dict[str, str]:
    """Texts of the findings by the last parts of their subjects."""
    return {Path(f.subject).name: f.text for f in check_store(tracker, **options).findings}


def test_sound_store_has_no_findings(tracker: OfflineTracker) -> None:
    log_one(tracker, "a")
    tracker.start("m", "still running", kind="build")
    with pytest.raises(ZeroDivisionError), tracked(tracker, "m", "failed", kind="build"):
        raise ZeroDivisionError
    deleted, _ = log_one(tracker, "deleted")
    tracker.inner._client.delete_run(deleted)

    assert check_store(tracker).findings == ()


def test_files_without_runs_and_runs_without_files(tracker: OfflineTracker, root: Path) -> None:
    lost, _ = log_one(tracker, "lost")
    with sqlite3.connect(root / "mlflow.db") as database:
        database.execute("DELETE FROM runs WHERE run_uuid = ?", (lost,))
    database.close()
    log_one(tracker, "kept")
    without, folder = log_one(tracker, "without files")
    lacking, other = log_one(tracker, "without manifest")
    shutil.rmtree(folder)
    (other / "artifacts" / "manifest.json").unlink()
    (root / "artifacts" / "m" / "models" / "m-1").mkdir(parents=True)  # MLflow's own

    assert found(tracker) == {
        lost: "its files belong to no run",
        f"run {without}": f"'without files' has no folder {folder}/artifacts",
        f"run {lacking}": "'without manifest' has no manifest.json, so it is incomplete",
    }


def test_half_written_files_are_found_when_old(tracker: OfflineTracker, root: Path, capsys) -> None:
    _, folder = log_one(tracker, "a")
    names = (folder / "artifacts" / ".artifact.uploading.1.2.abc", root / ".mlflow.db.123")
    for file in names:
        file.write_bytes(b"half")
    assert found(tracker) == {} and store.main(["check", "--root", str(root)]) == 0
    for file in names:
        os.utime(file, (LONG_AGO, LONG_AGO))

    assert found(tracker).keys() == {file.name for file in names}
    assert store.main(["check", "--root", str(root)]) == 1
    assert "2 problems." in capsys.readouterr().out


LEAVE = """
import os, subprocess, sys, tempfile
from trtops.system import processes
from trtops.ops.evaluation.command import run_group
from trtops.tracking.mlflow import MlflowTracker
MlflowTracker({root!r}).start("m", "left", kind="build")
tempfile.mkdtemp(prefix=processes.temporary_prefix("check"))
command = "import os, time; open({pid!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
run_group([sys.executable, "-c", command], tempfile.TemporaryFile(), None)
"""


@pytest.fixture
def killed(root: Path, tmp_path: Path) -> Iterator[int]:
    """Kills a process while its child command runs; yields the child's process id."""
    note = tmp_path / "pid"
    process = subprocess.Popen([sys.executable, "-c", LEAVE.format(root=str(root), pid=str(note))])
    until(lambda: note.exists() and note.read_text(), while_alive=process)
    process.kill()
    process.wait()
    pid = int(note.read_text())
    yield pid
    if not is_gone(pid):
        os.kill(pid, signal.SIGKILL)


def test_leftovers_of_killed_processes_are_found_and_reaped(tracker: OfflineTracker, killed: int, capsys) -> None:
    [info] = tracker.find(status="running")
    [folder] = processes.left_folders()
    assert found(tracker).keys() == {f"run {info.id}", f"process {killed}", folder.name}
    assert not is_gone(killed) and folder.exists()

    assert store.main(["reap", "--root", str(tracker.store.root)]) == 0

    output = capsys.readouterr().out
    assert output.startswith("1 runs closed.") and f"process {killed}" in output and str(folder) in output
    until(lambda: is_gone(killed))
    assert tracker.info(info.id).status == "killed" and found(tracker) == {}


def test_live_processes_keep_their_folders_and_children(tracker: OfflineTracker) -> None:
    with (
        tempfile.TemporaryDirectory(prefix=processes.temporary_prefix("check")) as folder,
        subprocess.Popen(
            [sys.executable, "-c", "input()"],
            stdin=subprocess.PIPE,
            env={**os.environ, processes.STARTED_BY: processes.mark()},
        ) as child,
    ):
        assert found(tracker) == {} and remove_leftovers(tracker) == []
        assert child.poll() is None and Path(folder).exists()
        child.communicate(b"\n")


def test_spooled_damaged_and_abandoned_runs(tracker: OfflineTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "upload_spool", lambda: None)
    for name in ("waits", "damaged"):
        run = tracker.start("m", name, kind="build")
        run.go_offline("for a test.")
        run.finish()
    waits, damaged = tracker.spool.runs()
    (damaged.folder / "run.json").write_text("{}")
    dead = f"4194305-1-{processes.mark().rpartition('-')[2]}"
    draft = tracker.spool.folder / f".writing.{dead}.x"
    draft.mkdir()

    texts = found(tracker)

    assert "in the spool" in texts[f"run {waits.id}"] and "damaged" in texts[damaged.folder.name]
    assert draft.name in texts and remove_leftovers(tracker) == [str(draft)] and not draft.exists()


def test_server_files_are_checked_if_their_folder_is_given(
    server: str, server_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = OfflineTracker(MlflowTracker(server), Spool(tmp_path / "spool"))
    files = server_root / "artifacts"
    with tracked(tracker, "checked", "kept", kind="build") as run:
        run.log_bytes(b"plan", "engine/x.plan")
    with tracked(tracker, "checked", "without files", kind="build") as bare:
        bare.log_bytes(b"plan", "engine/x.plan")
    shutil.rmtree(next(files.rglob(bare.id)))
    orphan = files / "checked" / ("f" * 32)
    (orphan / "artifacts").mkdir(parents=True)

    texts = found(tracker, artifacts=files)

    assert "has no folder" in texts[f"run {bare.id}"] and texts["f" * 32] == "its files belong to no run"
    assert not [subject for subject in texts if run.id in subject]
    tracker.inner._client.delete_run(bare.id)
    other = tmp_path / "another server's"
    shutil.move(orphan, other / "checked" / orphan.name)
    with pytest.raises(errors.ConfigError, match="has none of the 1 runs whose files are in"):
        check_store(tracker, artifacts=other)
    with pytest.raises(errors.ConfigError, match="expected the server's"):
        check_store(tracker, artifacts=tmp_path / "none")
    # Read-only commands must not make a store there.
    assert store.main(["check", "--root", str(other)]) == 3
    assert "There is no store" in capsys.readouterr().err and not (other / "mlflow.db").exists()


def test_unchecked_server_files_are_mentioned(server: str, tmp_path: Path) -> None:
    tracker = OfflineTracker(MlflowTracker(server), Spool(tmp_path / "spool"))
    run = tracker.start("housekeeping", "dead", kind="build", tags={Tag.OWNER: DEAD.to_json()})

    checked = check_store(tracker)

    assert f"run {run.id}" in [finding.subject for finding in checked.findings]
    assert "were not checked" in checked.text()
    assert run.id in [info.id for info in reap(tracker)]
