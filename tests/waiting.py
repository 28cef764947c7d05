"""Waiting for other processes, and time limits that end by an event instead of the machine's speed.

An endless wait ends with the time limit of the test (``--timeout`` in ``pyproject.toml``).
"""

import math
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FOR_EVER = 3600.0
"""Seconds; longer than any test may take."""


def until(condition: Callable[[], object], *, while_alive: subprocess.Popen[Any] | None = None) -> None:
    """Wait until something holds; fail if a process that is to bring it about ends without."""
    while not condition():
        if while_alive is not None and while_alive.poll() is not None:
            assert condition(), f"{while_alive.args} ended with {while_alive.returncode}"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, whether or not somebody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def commands_time_out_when(monkeypatch: pytest.MonkeyPatch, condition: Callable[[], object]) -> None:
    """Let the time that a process is given be over when something holds, and not before."""
    wait = subprocess.Popen.wait

    def waited(self: subprocess.Popen[Any], timeout: float | None = None) -> int:
        if timeout is None:
            return wait(self)
        until(condition)
        raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", waited)


def workers_time_out_when(monkeypatch: pytest.MonkeyPatch, condition: Callable[[], object]) -> None:
    """Let the time limit of a call in a child process be over when something holds, and not before."""
    clock = SimpleNamespace(monotonic=lambda: math.inf if condition() else 0.0, sleep=time.sleep)
    monkeypatch.setattr("trtops.system.worker.time", clock)
