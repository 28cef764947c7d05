"""A process of the test run that dies costs its test and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests.scheduling import Together

def pytest_xdist_make_scheduler(config, log):
    return Together(config, log, lambda nodeid: "flows" if "flow" in nodeid else nodeid)
"""

TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(12))
def test_one(number):
    if number in {dying}:
        os._exit(11)

@pytest.mark.parametrize("number", range(4))
def test_flow(number):
    if number == {flow}:
        os._exit(11)
"""


def run_with_dying(folder: Path, dying: set[int], flow: int) -> str:
    (folder / "conftest.py").write_text(CONFTEST.format(root=str(ROOT)))
    (folder / "test_dying.py").write_text(TESTS.format(dying=dying, flow=flow))
    command = [sys.executable, "-m", "pytest", "-n", "2", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    return subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=300, cwd=folder).stdout


def test_crash_costs_only_its_test(tmp_path: Path) -> None:
    out = run_with_dying(tmp_path, dying={0, 11}, flow=1)

    assert "3 failed, 13 passed" in out, out
    for died in ("test_one[0]", "test_one[11]", "test_flow[1]"):
        assert f"crashed while running 'test_dying.py::{died}'" in out
