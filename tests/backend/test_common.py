"""Bytes from and to files, and objects from scripts."""

import subprocess
import sys
from pathlib import Path

import pytest

from trtops import errors
from trtops.backend import environment
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
    (tmp_path / "plain").write_bytes(b"")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    with pytest.raises(errors.FormatError, match=r"none\.bin cannot be read: No such file"):
        bytes_from_path(tmp_path / "none.bin")
    with pytest.raises(errors.FormatError, match="Is a directory"):
        bytes_from_path(tmp_path)


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
    assert InvokeFromScript(script, "Adder")(1) == InvokeFromScript(script, "Adder").by + 1 == 11
    before = list(sys.path)
    # The script is executed at every call.
    assert [invoke_from_script(script, "runs") for _ in range(2)] == [1, 1]
    assert sys.path == before


def test_unusable_scripts_are_refused(script: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"Could not import symbol: load_dat from .*Did you mean 'load_data'"):
        invoke_from_script(script, "load_dat")
    with pytest.raises(errors.ConfigError, match=r"missing\.py does not exist"):
        invoke_from_script(tmp_path / "missing.py", "f")
    before = set(sys.modules)
    (tmp_path / "bad.py").write_text("raise ZeroDivisionError('mine')\n")
    with pytest.raises(ZeroDivisionError, match="mine"):
        invoke_from_script(tmp_path / "bad.py", "f")
    assert {name for name in sys.modules if name.startswith("trtops_script")} <= before


def test_processor_digest_ignores_the_clock(tmp_path, monkeypatch):
    text = "vendor_id\t: V\nmodel name\t: P 1\nflags\t: fpu sse avx2 {flag}\ncpu MHz\t: {clock}\n\nvendor_id\t: other"
    processors = {}
    for name, flag, clock in (("a", "rdtscp", "1"), ("b", "hypervisor", "2"), ("c", "avx512f", "1")):
        path = tmp_path / name
        path.write_text(text.format(flag=flag, clock=clock))
        monkeypatch.setattr(environment, "_CPUINFO", path)
        environment.processor.cache_clear()
        processors[name] = environment.processor()
    environment.processor.cache_clear()

    assert processors["a"].name == "P 1"
    assert processors["a"] == processors["b"]
    assert processors["a"].sha256 != processors["c"].sha256
    assert processors["c"].instruction_sets == ("avx2", "avx512f", "fpu", "sse")


def test_commit_is_marked_dirty(tmp_path):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert environment.git_commit(tmp_path) is None
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "first")
    git("tag", "v1")
    head = git("rev-parse", "HEAD")
    assert environment.git_commit(tmp_path) == head
    (tmp_path / "file").write_text("2")
    assert environment.git_commit(tmp_path) == f"{head}-dirty"
