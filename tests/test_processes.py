"""Processes of this machine: marks, and servers of processes that are gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import is_gone, until
from trtops.system import processes

SERVER = "prefect.server.api.server:create_app"
HANG = "import time; time.sleep(3600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({file!r}, 'w'); time.sleep(3600)"
SERVING = """
import os, subprocess, sys, time
from trtops.system import processes
os.environ[processes.SERVED_BY] = processes.mark()
watch = processes.start_server_watch()
hang = [sys.executable, "-c", {server!r}]
server = subprocess.Popen([*hang, "prefect.server.api.server:create_app"])
other = subprocess.Popen([*hang, "something else"])
print(watch.pid, server.pid, other.pid, flush=True)
time.sleep(3600)
"""


@contextlib.contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed in the end, also after a failure, where ``Popen`` by itself would wait for it."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def dead_mark() -> str:
    pid, started, namespace = processes.mark().split("-")
    return f"{pid}-{int(started) - 100}-{namespace}"


def test_only_marks_of_ended_processes_are_gone() -> None:
    namespace = processes.mark().rpartition("-")[2]

    assert not processes.is_gone(processes.mark())
    assert processes.is_gone(dead_mark()) and processes.is_gone(f"4194305-1-{namespace}")
    assert not processes.is_gone("4194305-1-1") and not processes.is_gone("what") and not processes.is_gone("")


def test_orphaned_prefect_server_is_killed_alone() -> None:
    environment = {**os.environ, processes.SERVED_BY: dead_mark()}
    with (
        running([sys.executable, "-c", HANG, SERVER], env=environment) as server,
        running([sys.executable, "-c", HANG, "something else"], env=environment) as other,
    ):
        for each in (server, other):
            until(lambda each=each: "sleep" in Path(f"/proc/{each.pid}/cmdline").read_text() or is_gone(each.pid))

        left = [process for process in processes.left_processes() if process.pid in (server.pid, other.pid)]
        # Another test on this machine may have reaped it meanwhile.
        assert [process.pid for process in left] in ([server.pid], [])
        for process in left:
            processes.kill_left_process(process)

        until(lambda: is_gone(server.pid))
        assert not is_gone(other.pid)


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_prefect_server_ends_with_its_process(how: signal.Signals) -> None:
    with running([sys.executable, "-c", SERVING.format(server=HANG)], stdout=subprocess.PIPE) as process:
        watch, server, other = map(int, process.stdout.readline().split())

        process.send_signal(how)

        until(lambda: is_gone(server) and is_gone(watch))
        assert not is_gone(other)
        os.kill(other, signal.SIGKILL)


def test_prefect_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    gone = dead_mark()
    deaf = DEAF.format(file=str(tmp_path / "deaf"))
    with running([sys.executable, "-c", deaf, SERVER], env={**os.environ, processes.SERVED_BY: gone}) as server:
        until((tmp_path / "deaf").exists)

        processes.end_server_after(gone, patience=0.1)

        assert server.wait() == -signal.SIGKILL
