"""Files that appear whole or not at all."""

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from trtops.json import save_json
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
        found = {name: (folder / name).read_text() for name in names if (folder / name).exists()}
        seen.add(tuple(found.get(name) for name in names))
        assert "model" not in found or len(set(found.values())) == 1, found
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
