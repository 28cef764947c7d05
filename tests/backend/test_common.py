"""Bytes from and to files, and objects from scripts."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from trtops import errors
from trtops.backend.common import (
    BytesFromPath,
    InvokeFromScript,
    SaveBytes,
    bytes_from_path,
    invoke_from_script,
    save_bytes,
)


def test_bytes_are_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.engine"

    assert SaveBytes(lambda: b"plan", path)() == b"plan"
    assert BytesFromPath(path)() == bytes_from_path(str(path)) == b"plan"
    assert save_bytes(b"other", path) == b"other"
    assert path.read_bytes() == b"other"
    save_bytes(memoryview(b"view"), path)  # type: ignore[arg-type]
    assert path.read_bytes() == b"view"


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.FormatError, match=r"none\.bin cannot be read: No such file"):
        bytes_from_path(tmp_path / "none.bin")
    with pytest.raises(errors.FormatError, match="Is a directory"):
        bytes_from_path(tmp_path)


def test_saved_files_have_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    save_bytes(b"", tmp_path / "saved")

    modes = {stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("plain", "saved")}
    assert len(modes) == 1


SCRIPT = """
from __future__ import annotations
from dataclasses import dataclass
import neighbour

@dataclass
class Adder:
    by: int = 10
    def __call__(self, x):
        return x + self.by

def load_data(count=1):
    return neighbour.VALUE * count

counter = {"runs": 0}
counter["runs"] += 1
def runs():
    return counter["runs"]
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("VALUE = 21\n")
    path = tmp_path / "my script.py"
    path.write_text(SCRIPT)
    yield path
    sys.modules.pop("neighbour", None)


def test_script_functions_and_classes_are_called(script: Path) -> None:
    assert InvokeFromScript(script, "load_data")(count=2) == 42
    assert invoke_from_script(str(script), "load_data", 3) == 63
    assert InvokeFromScript(script, "Adder")(1) == 11


def test_script_runs_at_every_call(script: Path) -> None:
    before = list(sys.path)

    assert [invoke_from_script(script, "runs") for _ in range(2)] == [1, 1]
    assert sys.path == before


def test_undefined_script_names_are_refused(script: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"does not define 'load_dat'\. Did you mean 'load_data'"):
        invoke_from_script(script, "load_dat")
    with pytest.raises(errors.ConfigError, match=r"missing\.py does not exist"):
        invoke_from_script(tmp_path / "missing.py", "f")


def test_script_exceptions_pass_through(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise ZeroDivisionError('mine')\n")
    before = set(sys.modules)

    with pytest.raises(ZeroDivisionError, match="mine"):
        invoke_from_script(tmp_path / "bad.py", "f")

    assert {name for name in sys.modules if name.startswith("trtops_script")} <= before
