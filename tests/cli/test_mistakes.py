"""The usual mistakes.

One message, the right exit code, and neither a run nor an experiment left, on the command line and in Python.
"""

import importlib.util
import logging
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtops
from tests import models
from tests.mistakes import MISTAKES, Mistake
from trtops import errors, ops
from trtops.cli.main import main
from trtops.tracking.store import default_tracker, existing_tracker, open_tracker

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="TensorRT is installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mistakes")
    models.conv_net().write(directory, "model")
    changed = models.conv_net().proto
    for weights in changed.graph.initializer:
        weights.CopyFrom(onnx.numpy_helper.from_array(2 * onnx.numpy_helper.to_array(weights), weights.name))
    onnx.save(changed, directory / "other.onnx")
    (directory / "text.onnx").write_text("this is no model")
    np.savez(directory / "other_name.npz", picture=models.random(2, 3, 8, 8, seed=1))
    np.savez(directory / "other_shape.npz", image=models.random(2, 5, 8, 8, seed=1))
    open_tracker(directory / "mlruns")
    return directory


@pytest.fixture
def store_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, mistake: Mistake) -> Path:
    """The store: one that is there and empty; its last run is that of a verdict, which is the last of the mistakes."""
    store = folder / ("nowhere" if mistake.says.startswith("Nothing") else "mlruns")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(logging, "raiseExceptions", False)  # Prefect's log goes to an output that pytest has closed
    monkeypatch.setenv("TRTOPS_HOME", str(store))
    return store


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda case: case.title)
def test_command_reports_mistake_in_one_message(mistake, store_folder, capsys, caplog):
    code = main(shlex.split(mistake.command))
    shown = capsys.readouterr()
    output = f"{shown.out}{shown.err}{caplog.text}"
    assert code == mistake.code and mistake.says in output and "Traceback" not in output
    if mistake.code > 1 and (store_folder / "mlflow.db").exists():
        assert {info.name for info in default_tracker().find()} <= {"other.onnx vs model.onnx"}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda case: case.title)
def test_python_raises_mistake(mistake, store_folder):
    names = {name: getattr(ops, name) for name in ops.__all__} | {"existing_tracker": existing_tracker}
    names |= {"BuildConfig": trtops.BuildConfig, "tracker": trtops.MemoryTracker()}
    if not mistake.error:
        assert eval(mistake.python, names) == mistake.says
        return
    with pytest.raises(getattr(errors, mistake.error, TypeError)) as caught:
        eval(mistake.python, names)
    assert mistake.says in str(caught.value)
    assert not names["tracker"].find()  # type: ignore[attr-defined]
