"""Store checks find orphans in both directions, half-written files, and leftovers of dead processes."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contracts.tracker import DEAD, HERE
from tests.stores import execute
from trtops.cli.main import main
from trtops.system import locks, processes
from trtops.tracking import owner
from trtops.tracking.base import tracked
from trtops.tracking.check import check_store, remove_leftovers
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.spool import Spool

LONG_AGO = 1_000_000_000


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders for temporary files and locks without those of other tests."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(locks, "_LOCKS_PARENT", folder)
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


def found(tracker: OfflineTracker) -> dict[str, str]:
    """Texts of the findings by the last parts of their subjects."""
    return {Path(subject).name: text for subject, text in check_store(tracker)}


def test_sound_store_has_no_findings(tracker: OfflineTracker) -> None:
    log_one(tracker, "a")
    tracker.start("m", "still running", kind="build")
    with pytest.raises(ZeroDivisionError), tracked(tracker, "m", "failed", kind="build"):
        raise ZeroDivisionError
    deleted, _ = log_one(tracker, "deleted")
    tracker.inner._client.delete_run(deleted)

    assert check_store(tracker) == []


def test_files_without_runs_and_runs_without_files(tracker: OfflineTracker, root: Path) -> None:
    lost, _ = log_one(tracker, "lost")
    execute(root, "DELETE FROM runs WHERE run_uuid = ?", lost)
    log_one(tracker, "kept")
    without, folder = log_one(tracker, "without files")
    lacking, other = log_one(tracker, "without manifest")
    shutil.rmtree(folder)
    (other / "artifacts" / "manifest.json").unlink()
    (root / "artifacts" / "m" / "models" / "m-1").mkdir(parents=True)  # MLflow's own

    assert found(tracker) == {
        lost: "its files belong to no run. Remove it, or restore a backup.",
        f"run {without}": f"'without files' is incomplete: there is no manifest.json in {folder}/artifacts",
        f"run {lacking}": f"'without manifest' is incomplete: there is no manifest.json in {other}/artifacts",
    }


def test_half_written_files_are_found_when_old(tracker: OfflineTracker, root: Path, capsys) -> None:
    _, folder = log_one(tracker, "a")
    names = (folder / "artifacts" / ".artifact.uploading.1.2.abc", root / ".mlflow.db.123")
    for file in names:
        file.write_bytes(b"half")
    assert found(tracker) == {} and main(["store", "check", "--root", str(root)]) == 0
    for file in names:
        os.utime(file, (LONG_AGO, LONG_AGO))

    assert found(tracker).keys() == {file.name for file in names}
    assert main(["store", "check", "--root", str(root)]) == 1
    assert "2 problems." in capsys.readouterr().out


LEAVE = """
import tempfile, time
from trtops.system import processes
from trtops.tracking.mlflow import MlflowTracker
MlflowTracker({root!r}).start("m", "left", kind="build")
tempfile.mkdtemp(prefix=processes.temporary_prefix("check"))
print("ready", flush=True)
time.sleep(3600)
"""


def test_leftovers_of_killed_processes_are_found_and_reaped(tracker: OfflineTracker, root: Path, capsys) -> None:
    command = [sys.executable, "-c", LEAVE.format(root=str(root))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert found(tracker) == {} and remove_leftovers(tracker) == []
        process.kill()
    [info] = tracker.find(status="running")
    [folder] = Path(tempfile.gettempdir()).glob(f"trtops.check.{process.pid}-*")
    assert found(tracker).keys() == {f"run {info.id}"}

    assert main(["store", "reap", "--root", str(tracker.store.root)]) == 0

    assert capsys.readouterr().out.startswith("1 run closed.") and not folder.exists()
    assert tracker.info(info.id).status == "killed" and found(tracker) == {}


ASK = "from trtops.tracking import owner; print(owner.current().text(), flush=True); input()"


def test_live_process_is_not_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child_owner = owner.Owner.read(child.stdout.readline().strip())
    assert not owner.is_gone(child_owner)

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped by its parent

    assert owner.is_gone(child_owner)
    child.communicate()
    assert owner.is_gone(child_owner)


def test_processes_end_by_reboot_or_start_time() -> None:
    assert not owner.is_gone(HERE)
    for ended in (DEAD, replace(HERE, started=HERE.started - 100), replace(HERE, boot="before")):
        assert owner.is_gone(ended)
    for remote in ({"host": "elsewhere"}, {"machine": "elsewhere", "boot": "other"}, {"namespace": "pid:[1]"}):
        assert not owner.is_gone(replace(DEAD, **remote))


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
    monkeypatch.setattr(tracker, "shown", "another store, with the same spool")
    assert found(tracker).keys() == texts.keys() - {f"run {waits.id}"}

    assert "in the spool" in texts[f"run {waits.id}"] and "damaged" in texts[damaged.folder.name]
    assert draft.name in texts and remove_leftovers(tracker) == [str(draft)] and not draft.exists()
