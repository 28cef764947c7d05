"""SIGTERM and Ctrl-C end a command within two seconds, in native code as well, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import until

# Native code that holds Python's lock, as ONNX's checker and TensorRT's parser do, and one that does not.
HOLDING = "sum(itertools.repeat(1))"
FREE = "hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2**31 - 1)"
PROGRAM = """
import hashlib, itertools, tempfile, time
from trtops.ending import ended_by_signals
from trtops.processes import temporary_prefix
from trtops.worker import Worker

with ended_by_signals(alone=True):
    folder = tempfile.mkdtemp(prefix=temporary_prefix("test"))
    worker = Worker()
    print(worker.run(__import__("os").getpid), folder, flush=True)
    {work}
"""


@pytest.mark.parametrize(
    ("work", "number"),
    [
        (HOLDING, signal.SIGTERM),
        (HOLDING, signal.SIGHUP),
        (FREE, signal.SIGINT),
        ("time.sleep(60)", signal.SIGTERM),
        ("time.sleep(60)", signal.SIGHUP),
        ("time.sleep(60)", signal.SIGINT),
    ],
)
def test_a_signal_ends_native_code_in_time(work: str, number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(work=work)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    child, folder = process.stdout.readline().split()
    assert Path(folder).is_dir()

    native = "sleep" not in work
    if native:
        before = _ticks(process.pid)
        until(lambda: _ticks(process.pid) > before + 20)  # it is at work
    begin = time.monotonic()
    process.send_signal(number)
    try:
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    took = time.monotonic() - begin

    assert took < 10, said  # 1.5 s and what a busy machine adds
    assert process.returncode == (-signal.SIGKILL if native else -signal.SIGINT)
    until(lambda: not Path(f"/proc/{child}").exists() or Path(f"/proc/{child}/cmdline").read_bytes() == b"")
    if native:
        assert "killed, since native code did not let go" in said
        until(lambda: not Path(folder).exists())


def _ticks(pid: int) -> int:
    """Clock ticks that a process has worked."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_a_command_that_ends_by_itself_leaves_no_second_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trtops.cli", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("trtops ")
    marked = [p for p in Path("/proc").glob("[0-9]*") if _is_watcher(p)]
    assert marked == []


def _is_watcher(process: Path) -> bool:
    try:
        return b"trtops.cli\0--version" in (process / "cmdline").read_bytes()
    except OSError:
        return False
