"""The Python of the README runs as it stands, and what the README names exists: targets of make, deployments, extras.

The lines of the command ``trtops`` are run by ``tests/cli/test_readme.py``.
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from flows.deployments import read_deployments
from tests import models

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_blocks_run(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models.conv_net().write(tmp_path, "model")
    (tmp_path / "images").mkdir()
    for number in range(3):
        np.savez(tmp_path / "images" / f"{number}.npz", image=models.random(2, 3, 8, 8, seed=number))
    monkeypatch.chdir(tmp_path)

    for snippet in blocks("python"):
        found: dict[str, object] = {}
        exec(compile(snippet, "README.md", "exec"), found)
        assert found["result"].verdict == "good"  # type: ignore[attr-defined]


def test_named_make_targets_exist() -> None:
    named = {*re.findall("`make ([a-z-]+)`", README)}
    named |= {line.split()[1] for block in blocks("sh") for line in block.splitlines() if line.startswith("make ")}

    assert named
    for target in named:
        done = subprocess.run(["make", "-n", target, "VENV=/nowhere"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_named_deployments_and_pools_exist() -> None:
    deployments = read_deployments()
    pools = {each["work_pool"]["name"] for each in deployments}
    names = {f"{each['entrypoint'].rpartition('.')[2].replace('_', '-')}/{each['name']}" for each in deployments}

    assert {*re.findall("`([a-z-]+/[cg]pu)`", README)} <= names
    for worker in re.findall("`(prefect worker start [^`]*)`", README.replace("\n", " ")):
        assert shlex.split(worker)[shlex.split(worker).index("--pool") + 1] in pools


def test_named_extras_can_be_installed() -> None:
    named = {*re.findall(r"trtops\[([a-z]+)\]", README)}

    assert named <= {*(importlib.metadata.metadata("trtops").get_all("Provides-Extra") or ())}
