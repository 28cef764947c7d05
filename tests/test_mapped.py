"""Files used as bytes: mapped, handed to other processes, and gone when nobody uses them."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path

import numpy as np
import pytest

from trtops import mapped
from trtops.mapped import Handed, blocks, file_of, kept, map_file, take_file
from trtops.record import sha256
from trtops.worker import Worker

CONTENT = bytes(range(256)) * 300


@pytest.fixture(autouse=True)
def temporary_files_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan"
    path.write_bytes(CONTENT)
    return path


def test_a_mapped_file_is_as_good_as_its_bytes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "_BLOCK", 1 << 14)
    view = map_file(file)

    assert view == CONTENT and len(view) == len(CONTENT) and bytes(view[-3:]) == CONTENT[-3:]
    assert b"".join(map(bytes, blocks(view))) == CONTENT == b"".join(map(bytes, blocks(CONTENT)))
    assert sha256(view) == sha256(CONTENT)
    assert file_of(view) == file and file_of(memoryview(CONTENT)) is None and file_of(CONTENT) is None
    del view
    gc.collect()
    assert file.exists()


def test_a_file_that_was_taken_goes_with_the_last_that_uses_it(file: Path, temporary_files_here: Path) -> None:
    view = take_file(file)
    part = view[10:20]
    assert not file.exists() and view == CONTENT
    del view
    gc.collect()
    assert part == CONTENT[10:20] and len(list(temporary_files_here.iterdir())) == 1
    del part
    gc.collect()
    assert list(temporary_files_here.iterdir()) == []


def test_what_a_library_holds_is_kept_in_memory_or_in_a_file(
    monkeypatch: pytest.MonkeyPatch, temporary_files_here: Path
) -> None:
    held = np.frombuffer(CONTENT, np.uint16).reshape(-1, 64)
    assert kept(held) == CONTENT and isinstance(kept(held), bytes)
    monkeypatch.setattr(mapped, "MOST_READ", 1000)
    monkeypatch.setattr(mapped, "_BLOCK", 1 << 14)

    view = kept(held)

    assert isinstance(view, memoryview) and view == CONTENT
    assert file_of(view) is not None and len(list(temporary_files_here.iterdir())) == 1
    del view
    gc.collect()
    assert list(temporary_files_here.iterdir()) == []


def test_an_empty_or_missing_file_leaves_nothing_behind(tmp_path: Path, temporary_files_here: Path) -> None:
    (tmp_path / "empty").touch()
    for name, error in (("empty", ValueError), ("none", FileNotFoundError)):
        with pytest.raises(error):
            take_file(tmp_path / name)
    assert list(temporary_files_here.iterdir()) == []


def test_a_mapped_file_is_handed_on_as_a_file(file: Path, temporary_files_here: Path) -> None:
    view = take_file(file)
    sent = pickle.dumps(Handed(view))
    assert len(sent) < 1000
    del view
    gc.collect()  # the sender may be done with it before it arrives
    received = pickle.loads(sent)
    assert received == CONTENT
    del received
    gc.collect()
    assert list(temporary_files_here.iterdir()) == []


def _length_and_echo(handed: memoryview) -> tuple[int, Handed]:
    return len(handed), Handed(handed)


def test_it_goes_to_a_child_and_back(file: Path, temporary_files_here: Path) -> None:
    view = take_file(file)
    with Worker(environment={"TMPDIR": str(temporary_files_here)}) as worker:
        length, back = worker.run(_length_and_echo, Handed(view))
    assert length == len(CONTENT) and back == CONTENT
    del view, back
    gc.collect()
    assert list(temporary_files_here.iterdir()) == []
