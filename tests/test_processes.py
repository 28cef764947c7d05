"""Processes of this machine: marks and leftovers."""

import os
import tempfile
from pathlib import Path

from trtops.system import processes


def test_only_marks_of_ended_processes_are_gone() -> None:
    pid, started, namespace = processes.mark().split("-")

    assert not processes.is_gone(processes.mark())
    assert processes.is_gone(f"{pid}-{int(started) - 100}-{namespace}")
    assert processes.is_gone(f"4194305-1-{namespace}")
    assert not processes.is_gone("4194305-1-1") and not processes.is_gone("what") and not processes.is_gone("")


def test_only_own_leftovers_are_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"trtops.build.4194305-1-{processes.mark().rpartition('-')[2]}.x"
    for folder in (left, tmp_path / f"{processes.temporary_prefix('build')}x", tmp_path / "trtops.my.own.notes"):
        folder.mkdir()

    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert processes.remove_left_folders() == []
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert processes.remove_left_folders() == [left] and len(list(tmp_path.iterdir())) == 2
