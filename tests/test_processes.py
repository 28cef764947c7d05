"""Processes of this machine: marks, and the Prefect server of a process that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.waiting import is_gone, until
from trtops.system import processes

SERVING = """
import sys, time
from types import SimpleNamespace
from prefect.server.api import server
from trtops.flows import server as ours
ours.isolate_server()
made = server.SubprocessASGIServer()  # one object per process
made.port = made.find_available_port()
process = made._run_uvicorn_command()
print(process.pid, flush=True)
time.sleep(3600)
"""


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

    assert processes.left_folders() == [left]
    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert processes.left_folders() == []


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_prefect_server_ends_with_its_process(how: signal.Signals, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", SERVING], stdout=subprocess.PIPE, text=True) as process:
        try:
            server = int(process.stdout.readline())
            until(lambda: Path(f"/proc/{server}/cwd").readlink() == tmp_path)  # where it looks for modules

            process.send_signal(how)

            until(lambda: is_gone(server))
        finally:
            process.kill()
