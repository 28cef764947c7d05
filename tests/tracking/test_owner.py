"""Whether the process that a run belongs to is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from trtops.processes import started_at
from trtops.tracking import owner

ASK = "from trtops.tracking import owner; print(owner.current().to_json(indent=None), flush=True); input()"


def test_a_process_is_there_until_it_ends():
    child = subprocess.Popen([sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    own = owner.Owner.from_json(child.stdout.readline())
    assert not owner.is_gone(own)

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but nobody has asked for its exit code

    assert owner.is_gone(own)
    child.communicate()
    assert owner.is_gone(own)


def test_another_process_with_the_same_id_is_not_the_owner():
    here = owner.current()

    assert not owner.is_gone(here)
    assert owner.is_gone(replace(here, started=here.started - 100))


def test_nothing_survives_a_boot_of_its_machine():
    assert owner.is_gone(replace(owner.current(), boot="before"))


def test_processes_of_other_machines_and_containers_are_not_evaluated():
    gone = replace(owner.current(), pid=2**22 + 1, started=1)
    assert owner.is_gone(gone)

    assert not owner.is_gone(replace(gone, host="elsewhere"))
    assert not owner.is_gone(replace(gone, machine="elsewhere", boot="other"))
    assert not owner.is_gone(replace(gone, namespace="pid:[1]"))


def test_an_init_process_of_another_user_is_there():
    here = owner.current()

    assert not owner.is_gone(replace(here, pid=1, started=started_at(1)))
