"""Whether the process that a run belongs to is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from tests.contracts.tracker import DEAD, HERE
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


def test_processes_end_by_reboot_or_start_time():
    assert not owner.is_gone(HERE)
    for ended in (DEAD, replace(HERE, started=HERE.started - 100), replace(HERE, boot="before")):
        assert owner.is_gone(ended)
    for remote in ({"host": "elsewhere"}, {"machine": "elsewhere", "boot": "other"}, {"namespace": "pid:[1]"}):
        assert not owner.is_gone(replace(DEAD, **remote))
