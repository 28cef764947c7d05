"""Processes are found again by id, start time and token, and nothing else is ever ended."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.team.conftest import eventually
from trtops import errors
from trtops.team import processes
from trtops.tracking import owner

TOKEN = secrets.token_hex(16)  # of this process: another runs tests of this file at the same time


def start(folder: Path, program: str, token: str = TOKEN) -> owner.Owner:
    command = [sys.executable, "-c", program]
    return processes.start(command, dict(os.environ), folder, folder / "log", token=token)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_process_and_all_that_it_started_are_ended(tmp_path: Path):
    child = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True); sys.stdin.read(); "
    process = start(tmp_path, f"{child}import time; print('ready', flush=True); time.sleep(600)")
    eventually(lambda: "ready" in processes.last_lines(tmp_path / "log"))
    assert processes.is_alive(process)
    assert len(processes._with_token(TOKEN)) == 2
    assert os.getsid(process.pid) == process.pid  # Ctrl-C in the terminal is not for it

    processes.stop(process, TOKEN)

    assert not processes.is_alive(process)
    assert processes._with_token(TOKEN) == []


def test_one_that_ignores_the_request_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "_KILL_SECONDS", 0.3)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    process = start(tmp_path, deaf)
    eventually(lambda: "deaf" in processes.last_lines(tmp_path / "log"))

    processes.stop(process, TOKEN, patience=0.3)

    assert not processes.is_alive(process)


def test_what_a_dead_one_left_behind_is_ended(tmp_path: Path):
    parent = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); print('gone', flush=True)"
    process = start(tmp_path, parent)
    eventually(lambda: not processes.is_alive(process))
    assert len(processes._with_token(TOKEN)) == 1

    processes.stop(process, TOKEN)

    assert processes._with_token(TOKEN) == []


def test_children_that_are_to_end_well_are_asked_first(tmp_path: Path):
    program = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import signal, sys, time
def end(*_):
    print("child ends", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
'''], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: (print("parent ends", flush=True), child.kill(), sys.exit()))
child.wait()
time.sleep(600)
"""
    process = start(tmp_path, program)
    eventually(lambda: "ready" in processes.last_lines(tmp_path / "log"))

    processes.stop(process, TOKEN, children_first=True)

    assert processes.last_lines(tmp_path / "log").splitlines() == ["ready", "child ends", "parent ends"]


def test_a_later_process_with_the_same_id_is_left_alone(bystander: subprocess.Popen[bytes]):
    now = owner.of(bystander.pid)
    assert now.started is not None
    earlier = replace(now, started=now.started - 1)
    assert not processes.is_alive(earlier)

    processes.stop(earlier, TOKEN)
    processes.stop(replace(now, boot="another"), TOKEN)

    assert bystander.poll() is None


def test_a_process_of_another_machine_is_not_ours_to_end(bystander: subprocess.Popen[bytes]):
    elsewhere = replace(owner.of(bystander.pid), machine="another", host="far")

    assert not processes.is_alive(elsewhere)
    with pytest.raises(errors.ConfigError, match="far"):
        processes.stop(elsewhere, TOKEN)
    assert bystander.poll() is None


def test_a_program_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(errors.ConfigError, match="/nowhere cannot be started: "):
        processes.start(["/nowhere"], {}, tmp_path, tmp_path / "log", token=TOKEN)


def test_a_log_that_has_grown_large_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "_LOG_BYTES", 3)
    (tmp_path / "log").write_text("old lines")

    start(tmp_path, "print('new')")

    eventually(lambda: processes.last_lines(tmp_path / "log") == "new")
    assert (tmp_path / "log.log.1").read_text() == "old lines"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path):
    (tmp_path / "log").write_bytes(b"\n".join(b"line %d" % i for i in range(9000)) + b"\n\xff\n\n")

    lines = processes.last_lines(tmp_path / "log").splitlines()

    assert len(lines) <= 15 and lines[-2:] == ["line 8999", "\ufffd"]
    assert processes.last_lines(tmp_path / "none") == ""
