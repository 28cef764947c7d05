"""Every line of the README that is Python, or runs a flow, a module, make, Prefect or pip, as it stands there.

The lines of the command ``trtops`` are run by ``tests/cli/test_readme.py``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests import models
from trtops.tracking import schema
from trtops.tracking.store import default_tracker

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

FEWER = {"--until decided": "--until 2", "flows.gate": "flows.gate --policy untimed.yaml"}
"""What would take minutes is run as this instead: a campaign without bad builds goes on for 200 builds, and a gate measures
latency until it is sure.
"""

CODES = {
    "flows.bisect": {3},  # no build is bad, so there is nothing to mix
    "flows.prove": {3},  # no build is bad, so there is nothing to prove
}
"""Exit codes other than 0."""

FILLED = {
    "flows.compare": "build",
    "flows.sensitivity": "calibrate",
    "flows.promote": "iteration",
}
"""The kind of run that ``<id>`` or ``<run>`` stands for, of which the newest is taken; a campaign unless said here."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def modules() -> list[str]:
    """Command lines that run a Python module: in blocks, and in tables and sentences."""
    in_blocks = [line.partition("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    beside = re.sub("```.*?```", "", README, flags=re.DOTALL)
    return [line for line in (*in_blocks, *re.findall("`([^`]+)`", beside)) if line.startswith("python -m ")]


def newest(kind: str) -> str:
    """The newest run of a kind that is not bad."""
    found = default_tracker().find(tags={schema.Tag.KIND: kind})
    return max((info for info in found if info.verdict != "bad"), key=lambda info: info.start_time).id


def run_module(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.delitem(sys.modules, words[0], raising=False)  # as in a new process: runpy refuses a mirror's module
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 2
    return 0


@pytest.fixture
def folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files that the README names."""
    models.conv_net().write(tmp_path, "model")
    (tmp_path / "images").mkdir()
    for number in range(3):
        np.savez(tmp_path / "images" / f"{number}.npz", image=models.random(2, 3, 8, 8, seed=number))
    (tmp_path / "convert.json").write_text("{}")
    (tmp_path / "untimed.yaml").write_text("latency: null\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    yield tmp_path


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_the_readme_s_python_and_flows_run_one_after_the_other(folder, monkeypatch, capsys):
    for snippet in blocks("python"):
        found: dict[str, object] = {}
        exec(compile(snippet, "README.md", "exec"), found)
        assert found["result"].verdict == "good"  # type: ignore[attr-defined]
    ran = set()
    for line in modules():
        for long, short in FEWER.items():
            line = line.replace(long, short)
        words = shlex.split(line)[2:]
        if "<" in line:
            words = [re.sub("<[a-z]+>", newest(FILLED.get(words[0], "debug_build")), word) for word in words]
        capsys.readouterr()
        code = run_module(words, monkeypatch)
        assert code in CODES.get(words[0], {0}), f"{line}: exit code {code}\n{capsys.readouterr()}"
        ran.add(words[0])
    assert {"flows.convert", "flows.promote", "flows.sensitivity", "trtops.tracking.store"} <= ran


def test_targets_of_make_that_the_readme_names_exist():
    named = set(re.findall("`make ([a-z-]+)`", README)) | {
        line.split()[1] for block in blocks("sh") for line in block.splitlines() if line.startswith("make ")
    }

    assert {"demo", "test", "ui", "up", "down", "status", "deploy", "serve", "check", "bench", "help"} <= named
    for target in named:
        done = subprocess.run(["make", "-n", target, "VENV=/nowhere"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_deployments_that_the_readme_names_are_there_and_a_worker_can_be_started_as_it_says():
    (worker,) = re.findall("`(prefect worker start [^`]*)`", README.replace("\n", " "))
    assert re.findall(r"`prefect deployment run ([a-z-]+/[cg]pu) -p model=", README) == ["convert/cpu"]
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    for deployment in deployments:
        module, _, function = deployment["entrypoint"].rpartition(".")
        assert callable(getattr(importlib.import_module(module), function))
        assert f"`{deployment['work_pool']['name']}`" in README

    assert shlex.split(worker)[shlex.split(worker).index("--pool") + 1] in {d["work_pool"]["name"] for d in deployments}
    names = {f"{d['entrypoint'].rpartition('.')[2].replace('_', '-')}/{d['name']}" for d in deployments}
    assert set(re.findall("`([a-z-]+/[cg]pu)`", README)) <= names
    from prefect.cli.worker import start

    assert {"pool", "limit"} & {name.removeprefix("work_") for name in inspect.signature(start).parameters} >= {"limit"}


def test_extras_that_the_readme_names_can_be_installed():
    named = set(re.findall(r"trtops\[([a-z]+)\]", README))
    assert named and named <= set(importlib.metadata.metadata("trtops").get_all("Provides-Extra") or ())
