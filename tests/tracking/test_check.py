"""A store check: orphans in both directions, what was left half-written, what dead processes left; mended where it is safe."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import is_gone, until
from trtops import errors, locks, processes
from trtops.tracking import store
from trtops.tracking.base import tracked
from trtops.tracking.check import check_store
from trtops.tracking.keeping import KeepingTracker
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.outbox import Outbox
from trtops.tracking.schema import Tag

TOUCHED = 1_000_000_000  # seconds since the epoch: long ago


@pytest.fixture(autouse=True)
def own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files and locks where nobody else's are; of left processes those alone that were started in it.

    Others of this machine leave some as well: other tests, in other processes, which kill what they start.
    """
    import tempfile

    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(locks, "_PLACE", folder)
    all_left = processes.left_processes

    def own_left() -> list[Any]:
        return [each for each in all_left() if each.environ().get("TMPDIR") == str(folder)]

    monkeypatch.setattr(processes, "left_processes", own_left)
    yield folder
    tempfile.tempdir = None


@pytest.fixture
def root(new_store: Callable[[Path], Path], tmp_path: Path) -> Path:
    return new_store(tmp_path / "mlruns")


@pytest.fixture
def tracker(root: Path, tmp_path: Path) -> KeepingTracker:
    return KeepingTracker(MlflowTracker(root), Outbox([tmp_path / "outbox"]))


def log_one(tracker: KeepingTracker, name: str) -> tuple[str, Path]:
    with tracked(tracker, "m", name, kind="build") as run:
        run.log_bytes(b"plan", "engine/x.plan")
    return run.id, tracker.store.artifacts / "m" / run.id


def found(tracker: KeepingTracker, **options: Any) -> dict[str, tuple[str, bool]]:
    """What was found: by the last part of what it is, what was said and whether it was mended."""
    return {Path(f.what).name: (f.says, f.mended) for f in check_store(tracker, **options).findings}


def test_a_sound_store_has_nothing_to_mend(tracker: KeepingTracker) -> None:
    log_one(tracker, "a")
    tracker.start("m", "still running", kind="build")
    with pytest.raises(ZeroDivisionError), tracked(tracker, "m", "failed", kind="build"):
        raise ZeroDivisionError
    deleted, _ = log_one(tracker, "deleted")
    tracker.inner._client.delete_run(deleted)

    assert check_store(tracker).findings == ()


def test_files_of_no_run_are_put_aside_and_empty_folders_removed(tracker: KeepingTracker, root: Path) -> None:
    run_id, folder = log_one(tracker, "lost")
    kept, _ = log_one(tracker, "kept")
    (root / "artifacts" / "m" / ("0" * 32) / "artifacts").mkdir(parents=True)
    (root / "artifacts" / "m" / "models" / "m-1").mkdir(parents=True)  # MLflow's own
    with sqlite3.connect(root / "mlflow.db") as database:
        database.execute("DELETE FROM runs WHERE run_uuid = ?", (run_id,))
    database.close()

    told = found(tracker)
    assert told.keys() == {run_id, "0" * 32} and not any(mended for _, mended in told.values())
    assert "belong to no run" in told[run_id][0] and "empty" in told["0" * 32][0]
    assert folder.is_dir()

    assert all(mended for _, mended in found(tracker, mend=True).values())
    assert (root / "lost" / "m" / run_id / "artifacts" / "engine" / "x.plan").read_bytes() == b"plan"
    assert not folder.exists() and not (root / "artifacts" / "m" / ("0" * 32)).exists()
    assert found(tracker) == {} and tracker.load(kept).read_bytes("engine/x.plan") == b"plan"


def test_runs_without_files_or_a_manifest_are_said_and_left_to_a_person(tracker: KeepingTracker) -> None:
    without, folder = log_one(tracker, "without files")
    lacking, other = log_one(tracker, "without manifest")
    shutil.rmtree(folder)
    (other / "artifacts" / "manifest.json").unlink()

    told = found(tracker, mend=True)

    assert told[f"run {without}"] == (f"'without files' has no folder {folder}/artifacts", False)
    assert "no manifest.json" in told[f"run {lacking}"][0] and not told[f"run {lacking}"][1]
    assert not check_store(tracker).sound


def test_what_was_left_half_written_is_removed_once_nobody_can_be_writing_it(
    tracker: KeepingTracker, root: Path
) -> None:
    _, folder = log_one(tracker, "a")
    names = (folder / "artifacts" / ".artifact.uploading.1.2.abc", root / ".mlflow.db.123")
    for file in names:
        file.write_bytes(b"half")
    assert found(tracker) == {}
    for file in names:
        os.utime(file, (TOUCHED, TOUCHED))

    assert found(tracker, mend=True).keys() == {file.name for file in names}
    assert not any(file.exists() for file in names)


LEAVE = """
import os, subprocess, sys, tempfile
from pathlib import Path
from trtops import locks, processes
from trtops.ops.evaluation.command import run_group
from trtops.tracking.mlflow import MlflowTracker
MlflowTracker({root!r}).start("m", "left", kind="build")
tempfile.mkdtemp(prefix=processes.temporary_prefix("check"))
lock = locks.held("campaign 1", Path({root!r}, "locks"))
lock.__enter__()
command = "import os, time; open({pid!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
run_group([sys.executable, "-c", command], tempfile.TemporaryFile(), None)
"""


@pytest.fixture
def killed(root: Path, tmp_path: Path) -> Iterator[int]:
    """A process was killed while a command of its ran; yields the command's process id."""
    note = tmp_path / "pid"
    process = subprocess.Popen([sys.executable, "-c", LEAVE.format(root=str(root), pid=str(note))])
    until(lambda: note.exists() and note.read_text(), while_alive=process)
    process.kill()
    process.wait()
    pid = int(note.read_text())
    yield pid
    if not is_gone(pid):
        os.kill(pid, signal.SIGKILL)


def test_what_a_killed_process_left_is_found_and_removed(
    tracker: KeepingTracker, killed: int, own_temporary_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [info] = tracker.find(status="running")
    [folder] = processes.left_folders()

    told = found(tracker)
    assert told.keys() == {f"run {info.id}", f"process {killed}", folder.name}
    assert not any(mended for _, mended in told.values()) and not is_gone(killed) and folder.exists()

    assert store.main(["reap", "--root", str(tracker.store.root)]) == 0

    said = capsys.readouterr().out
    assert said.startswith("1 runs closed.") and f"process {killed}" in said and str(folder) in said
    until(lambda: is_gone(killed))
    assert tracker.info(info.id).status == "killed" and found(tracker) == {}


def test_what_living_processes_hold_is_left_alone(tracker: KeepingTracker) -> None:
    import tempfile

    with (
        locks.held("mine") as held,
        tempfile.TemporaryDirectory(prefix=processes.temporary_prefix("check")),
        subprocess.Popen(
            [sys.executable, "-c", "input()"],
            stdin=subprocess.PIPE,
            env={**os.environ, processes.STARTED_BY: processes.mark()},
        ) as child,
    ):
        assert held and found(tracker, mend=True) == {}
        with locks.held("mine") as again:
            assert not again
        assert child.poll() is None
        child.communicate(b"\n")


def test_a_mark_of_another_container_or_of_nobody_is_not_evaluated() -> None:
    pid, started, namespace = processes.mark().split("-")

    assert not processes.is_gone(processes.mark())
    assert processes.is_gone(f"{pid}-{int(started) - 100}-{namespace}") and processes.is_gone(f"4194305-1-{namespace}")
    assert not processes.is_gone("4194305-1-1") and not processes.is_gone("what") and not processes.is_gone("")


def test_an_orphaned_prefect_server_is_ended_and_other_children_of_a_flow_are_not(tracker: KeepingTracker) -> None:
    pid, started, namespace = processes.mark().split("-")
    environment = {**os.environ, processes.SERVED_BY: f"{pid}-{int(started) - 100}-{namespace}"}
    hang = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with (
        ended_at_last([*hang, "prefect.server.api.server:create_app"], env=environment) as server,
        ended_at_last([*hang, "something else"], env=environment) as other,
    ):
        until(lambda: all("sleep" in command_of(p.pid) or is_gone(p.pid) for p in (server, other)))

        # Nothing, if somebody else on this machine reaped it meanwhile.
        assert found(tracker, mend=True).keys() <= {f"process {server.pid}"}

        until(lambda: is_gone(server.pid))
        assert not is_gone(other.pid)


@contextlib.contextmanager
def ended_at_last(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed in the end, whatever comes: ``Popen`` by itself would wait for it after a failure."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def test_runs_that_wait_and_folders_that_are_damaged_are_said_and_forgotten_drafts_removed(
    tracker: KeepingTracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("waits", "damaged"):
        run = tracker.start("m", name, kind="build")
        run.keep_apart("for a test.")
        monkeypatch.setattr(tracker, "bring_in", lambda: None)
        run.finish()
    waits, damaged = tracker.outbox.folders()
    (damaged.path / "run.json").write_text("{}")
    draft = tmp_path / "outbox" / ".writing-x"
    draft.mkdir()
    (draft / "owner.json").write_text(dead_owner())
    tracker.outbox = Outbox(tracker.outbox.places)

    told = found(tracker, mend=True)

    assert "waits in" in told[f"run {waits.run.id}"][0] and "damaged" in told[damaged.path.name][0]
    assert told[".writing-x"][1] and not draft.exists()


def dead_owner() -> str:
    import dataclasses

    from trtops.tracking import owner

    return dataclasses.replace(owner.current(), pid=2**22 + 1, started=1).to_json()


def test_the_files_of_a_server_are_seen_where_their_folder_is_named(
    server: str, server_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = KeepingTracker(MlflowTracker(server), Outbox([tmp_path / "outbox"]))
    files = server_root / "artifacts"
    with tracked(tracker, "checked", "kept", kind="build") as run:
        run.log_bytes(b"plan", "engine/x.plan")
    with tracked(tracker, "checked", "without files", kind="build") as bare:
        bare.log_bytes(b"plan", "engine/x.plan")
    shutil.rmtree(next(files.rglob(bare.id)))
    orphan = files / "checked" / ("f" * 32)
    (orphan / "artifacts").mkdir(parents=True)
    (orphan / "artifacts" / "x.plan").write_bytes(b"plan")

    told = found(tracker, artifacts=files, mend=True)

    assert "has no folder" in told.pop(f"run {bare.id}")[0]
    assert told.pop("f" * 32) == ("its files belong to no run", True)
    assert (server_root / "lost" / "checked" / ("f" * 32) / "artifacts" / "x.plan").read_bytes() == b"plan"
    assert not [what for what in told if run.id in what] and tracker.load(run.id).read_bytes("engine/x.plan") == b"plan"
    tracker.inner._client.delete_run(bare.id)

    shutil.copytree(server_root / "lost" / "checked", tmp_path / "another server's" / "checked")
    with pytest.raises(errors.ConfigError, match="knows none of the 1 runs whose files are in"):
        check_store(tracker, artifacts=tmp_path / "another server's")
    with pytest.raises(errors.ConfigError, match="is no folder"):
        check_store(tracker, artifacts=tmp_path / "none")
    # Opening a store makes it: every file beside a new database would be of no run.
    assert store.main(["check", "--root", str(tmp_path / "another server's"), "--mend"]) == 3
    assert "there is no mlflow.db" in capsys.readouterr().err
    assert not (tmp_path / "another server's" / "mlflow.db").exists()


def test_of_a_server_it_is_said_what_cannot_be_seen(server: str, tmp_path: Path) -> None:
    tracker = KeepingTracker(MlflowTracker(server), Outbox([tmp_path / "outbox"]))
    run = tracker.start("housekeeping", "dead", kind="build", tags={Tag.OWNER: dead_owner()})

    checked = check_store(tracker, mend=True)

    assert [finding.what for finding in checked.findings] == [f"run {run.id}"] and checked.sound
    assert "say `trtops store check --root" in checked.text()
    assert tracker.info(run.id).status == "killed"


def test_the_command_says_what_is_left_by_its_exit_code(tracker: KeepingTracker, capsys) -> None:
    root = str(tracker.store.root)
    _, folder = log_one(tracker, "a")
    half = folder / "artifacts" / ".artifact.uploading.1.2.abc"
    half.write_bytes(b"half")
    os.utime(half, (TOUCHED, TOUCHED))

    assert store.main(["check", "--root", root]) == 1
    assert "To be done by --mend: it is removed." in capsys.readouterr().out
    assert store.main(["check", "--root", root, "--mend"]) == 0
    assert "1 findings, 1 mended." in capsys.readouterr().out
    assert store.main(["check", "--root", root]) == 0
    (folder / "artifacts" / "manifest.json").unlink()
    assert store.main(["check", "--root", root, "--mend"]) == 1


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


SERVING = """
import os, subprocess, sys, time
from trtops import processes
os.environ[processes.SERVED_BY] = processes.mark()
watch = processes.start_server_watch()
hang = [sys.executable, "-c", {server!r}]
server = subprocess.Popen([*hang, "prefect.server.api.server:create_app"])
other = subprocess.Popen([*hang, "something else"])
print(watch.pid, server.pid, other.pid, flush=True)
time.sleep(3600)
"""
POLITE = "import time; time.sleep(3600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({file!r}, 'w'); time.sleep(3600)"


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_the_prefect_server_of_a_killed_process_ends_with_it(how: signal.Signals) -> None:
    with ended_at_last([sys.executable, "-c", SERVING.format(server=POLITE)], stdout=subprocess.PIPE) as process:
        watch, server, other = map(int, process.stdout.readline().split())

        process.send_signal(how)

        until(lambda: is_gone(server) and is_gone(watch))
        assert not is_gone(other)
        os.kill(other, signal.SIGKILL)


def test_a_prefect_server_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    gone = dead_mark()
    deaf = DEAF.format(file=str(tmp_path / "deaf"))
    with ended_at_last(
        [sys.executable, "-c", deaf, "prefect.server.api.server:create_app"],
        env={**os.environ, processes.SERVED_BY: gone},
    ) as server:
        until((tmp_path / "deaf").exists)

        processes.end_server_after(gone, patience=0.1)

        assert server.wait() == -signal.SIGKILL


def dead_mark() -> str:
    pid, started, namespace = processes.mark().split("-")
    return f"{pid}-{int(started) - 100}-{namespace}"
