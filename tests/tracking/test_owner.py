"""Whether the process that a run belongs to is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from trtops.tracking import owner

ASK = "from trtops.tracking import owner; print(owner.current().to_json(indent=None), flush=True); input()"


def test_live_process_is_not_gone():
    child = subprocess.Popen([sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    own = owner.Owner.from_json(child.stdout.readline())
    assert not owner.is_gone(own)

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped by its parent

    assert owner.is_gone(own)
    child.communicate()
    assert owner.is_gone(own)


def test_start_time_identifies_a_process():
    here = owner.current()

    assert not owner.is_gone(here)
    assert owner.is_gone(replace(here, started=here.started - 100))


def test_reboot_ends_every_process():
    assert owner.is_gone(replace(owner.current(), boot="before"))


def test_remote_processes_are_not_gone():
    gone = replace(owner.current(), pid=2**22 + 1, started=1)
    assert owner.is_gone(gone)

    assert not owner.is_gone(replace(gone, host="elsewhere"))
    assert not owner.is_gone(replace(gone, machine="elsewhere", boot="other"))
    assert not owner.is_gone(replace(gone, namespace="pid:[1]"))
