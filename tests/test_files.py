"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from trtops.files import locked, open_atomically
from trtops.json import save_json


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    with pytest.raises(KeyboardInterrupt), open_atomically(path) as file:
        file.write(b"new, but not all of i")
        file.flush()
        raise KeyboardInterrupt

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_behind_a_link_the_file_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "store" / "file")

    with open_atomically(tmp_path / "link") as file:
        file.write(b"new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "store" / "file").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    save_json([1, 2], str(pipe))
    reader.join(10)

    assert json.loads(read[0]) == [1, 2]
    assert pipe.is_fifo()


def test_a_device_is_not_replaced() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"), open_atomically("/dev/full") as file:
        file.write(b"x")

    assert Path("/dev/full").is_char_device()


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"folder'$") as caught, open_atomically(tmp_path / "folder") as file:
        file.write(b"x")

    assert caught.value.filename == str(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_an_error_of_a_folder_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file or directory: '/proc/none'$"), open_atomically("/proc/none"):
        pass


def test_a_lock_is_waited_for_and_its_folder_is_made(tmp_path: Path) -> None:
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
