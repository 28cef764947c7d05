"""Modules in a working folder, as next to a downloaded model, are not imported by what we start there."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models
from tests.hostile import plant_modules
from trtops.system.worker import Worker


@pytest.fixture
def planted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a model and modules; afterwards, none of these was imported."""
    folder, note = tmp_path / "downloads", tmp_path / "imported"
    folder.mkdir()
    models.conv_net().fixed().write(folder)
    plant_modules(folder, note)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRTOPS_HOME", str(tmp_path / "mlruns"))
    yield folder
    assert not note.exists(), note.read_text()


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python here as a person would, with no path of this checkout's but the installed one."""
    environment = {**os.environ, **environment}
    environment.pop("PYTHONPATH", None)
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=600)


def test_planted_module_works_without_protection(tmp_path: Path, monkeypatch) -> None:
    plant_modules(tmp_path, tmp_path / "imported")
    monkeypatch.chdir(tmp_path)

    assert "numpy of the working folder" in python("-c", "import numpy").stderr
    assert (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "trtops.cli", "check", "lint", "conv_net.onnx"),
        ("-mtrtops.cli", "run", "conv_net.onnx", "--onnxrt", "--use-subprocess"),
    ],
)
def test_commands_ignore_planted_modules(planted_folder: Path, words: tuple[str, ...]) -> None:
    done = python(*words)
    assert done.returncode in (0, 1), done.stderr


def test_worker_uses_search_path_of_parent(planted_folder: Path, monkeypatch) -> None:
    with Worker() as worker:
        assert worker.run(os.getcwd) == str(planted_folder)
        assert "" not in worker.run(_search_path) and str(planted_folder) not in worker.run(_search_path)


def _search_path() -> list[str]:
    import onnxruntime  # noqa: F401 - where from?

    return sys.path
