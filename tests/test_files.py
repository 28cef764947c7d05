"""Files that appear whole or not at all; locks on them, and the processes that hold those."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from trtops import errors
from trtops.json import save_json
from trtops.system import locks, processes
from trtops.system.files import open_atomically, replaced_together
from trtops.system.locks import locked


def test_new_file_replaces_target_of_link(tmp_path: Path) -> None:
    usual, path, link = tmp_path / "usual", tmp_path / "new" / "file", tmp_path / "link"
    usual.touch()
    link.symlink_to(path)

    for written in (b"old", b"x" * 3_000_000):
        with open_atomically(link) as file:
            file.write(written)
        assert path.read_bytes() == written

    assert link.is_symlink() and list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode == usual.stat().st_mode


def test_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    save_json([1, 2], str(pipe))
    reader.join(10)

    assert json.loads(read[0]) == [1, 2]
    assert pipe.is_fifo()


def test_device_is_not_replaced() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"), open_atomically("/dev/full") as file:
        file.write(b"x")

    assert Path("/dev/full").is_char_device()


def test_error_names_the_target(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"folder'$") as caught, open_atomically(tmp_path / "folder") as file:
        file.write(b"x")

    assert caught.value.filename == str(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_lock_waits_and_creates_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.lock"
    order = []

    def second() -> None:
        with locked(path):
            order.append("second")

    with locked(path):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.1)
        order.append("first")
    waiting.join()

    assert order == ["first", "second"]


def test_killed_writer_never_mixes_files(tmp_path: Path) -> None:
    """Killed at every call of the system that changes a name: all old, no main file, or all new."""
    names = ("model", "model.data", "more.data")
    seen = set()
    for killed_at in range(8):
        folder = tmp_path / str(killed_at)
        folder.mkdir()
        for name in names:
            (folder / name).write_text("old")
        child = os.fork()
        if child == 0:
            _replace_until_killed(folder, names, killed_at)
        os.waitpid(child, 0)
        contents = {name: (folder / name).read_text() for name in names if (folder / name).exists()}
        seen.add(tuple(contents.get(name) for name in names))
        assert "model" not in contents or len(set(contents.values())) == 1, contents
    assert ("old",) * 3 in seen and ("new",) * 3 in seen


def _replace_until_killed(folder: Path, names: tuple[str, ...], killed_at: int) -> None:
    calls = iter(range(100))

    def die(event: str, args: tuple[object, ...]) -> None:
        if event in ("os.rename", "os.remove") and next(calls) == killed_at:
            os._exit(9)

    sys.addaudithook(die)
    with replaced_together(folder / names[0]) as open_part:
        for name in names:
            with open_part(folder / name) as file:
                file.write(b"new")
    os._exit(0)


def test_failed_write_keeps_all_files(tmp_path: Path) -> None:
    model, data = tmp_path / "model", tmp_path / "data"
    model.write_text("old")
    data.write_text("old")
    with pytest.raises(KeyboardInterrupt), open_atomically(model) as file:
        file.write(b"new, but not all of i")
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), replaced_together(model) as open_part:
        open_part(data).close()
        raise KeyboardInterrupt

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"model": "old", "data": "old"}


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    with locks.held("x / y", tmp_path) as first, locks.held("x / y", tmp_path) as second:
        assert first and not second
    with locks.held("x / y", tmp_path) as third:
        assert third


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    hold = f"with locks.held('x', pathlib.Path({str(tmp_path)!r})): os.abort()"
    code = f"import os, pathlib; from trtops.system import locks\n{hold}"
    subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False)

    with locks.held("x", tmp_path) as mine:
        assert mine


def test_machine_locks_ignore_tmpdir(tmp_path: Path) -> None:
    name = f"test {tmp_path}"
    code = f"from trtops.system import locks\nwith locks.held({name!r}) as mine: print(mine)"
    with locks.held(name) as mine:
        other = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], env=other, capture_output=True, text=True, check=True)

    assert mine and done.stdout == "False\n"


def test_links_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("content")
    (tmp_path / "x").symlink_to(precious)

    with pytest.raises(errors.ConfigError, match=r"The lock .*x cannot be used"), locks.held("x", tmp_path):
        pass
    with pytest.raises(OSError, match="x"), locks.locked(tmp_path / "x"):
        pass

    assert precious.read_text() == "content"


@pytest.mark.parametrize("folder_kind", ["writable by a group", "writable by all", "a link", "another user's"])
def test_unsafe_lock_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_kind: str) -> None:
    monkeypatch.setattr(locks, "_LOCKS_PARENT", tmp_path)
    folder = locks.machine_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    if folder_kind == "a link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif folder_kind == "another user's":
        uid = os.getuid()
        folder.rename(tmp_path / f"trtops-locks-{uid + 1}")
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    else:
        folder.chmod(0o720 if folder_kind == "writable by a group" else 0o702)

    with pytest.raises(errors.ConfigError, match="only this user can write to"), locks.held("x"):
        pass


def test_only_marks_of_ended_processes_are_gone() -> None:
    pid, started, namespace = processes.mark().split("-")

    assert not processes.is_gone(processes.mark())
    assert processes.is_gone(f"{pid}-{int(started) - 100}-{namespace}")
    assert processes.is_gone(f"4194305-1-{namespace}")
    assert not processes.is_gone("4194305-1-1") and not processes.is_gone("what") and not processes.is_gone("")


def test_only_own_leftovers_are_found(tmp_path: Path, monkeypatch) -> None:
    worker = tmp_path / f"{processes.TEAM_FOLDER}worker-gpu-y"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name = f"trtops.build.4194305-1-{processes.mark().rpartition('-')[2]}.x"
    left, lefts_worker = tmp_path / name, worker / name
    for folder in (
        worker,
        lefts_worker,
        left,
        tmp_path / f"{processes.temporary_prefix('build')}x",
        tmp_path / "trtops.my.own.notes",
    ):
        folder.mkdir()

    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert processes.remove_left_folders() == []
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / f"{processes.TEAM_FOLDER}worker-cpu-x"))
    assert processes.remove_left_folders() == [lefts_worker, left] and len(list(tmp_path.iterdir())) == 3
