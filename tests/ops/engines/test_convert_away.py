"""Convert when the store fails at any moment: the engine is returned, and its run is spooled and uploaded later."""

import json
from pathlib import Path

import pytest

from tests import models
from tests.attacks.outages import contents, failures
from tests.stores import copy_store
from trtops import errors
from trtops.cli.main import main
from trtops.tracking.mlflow import MlflowTracker


@pytest.mark.parametrize("error", [errors.TrackingUnavailableError, errors.NoRoomError], ids=["away", "full"])
def test_runs_are_whole_after_store_failures(tmp_path: Path, error: type[errors.TrackingError]) -> None:
    assert list(failures(error, 5, tmp_path)) == []


def test_full_store_warns_and_keeps_the_verdict(tmp_path: Path, template: Path, monkeypatch, caplog, capsys) -> None:
    model, store = models.identity().write(tmp_path), copy_store(template, tmp_path / "mlruns")
    monkeypatch.setenv("TRTOPS_SPOOL", str(tmp_path / "spool"))

    def full(*args: object, **named: object) -> None:
        raise errors.NoRoomError("full")

    with monkeypatch.context() as context:
        context.setattr("trtops.tracking.mlflow.MlflowTracker.create", full)
        assert main(["convert", str(model), "--convert-to", "ort", "--experiment", "e", "--store", str(store)]) == 0
    assert "goes to the spool" in caplog.text and "verdict: good" in capsys.readouterr().out
    assert main(["store", "upload", "--root", str(store)]) == 0
    assert contents(MlflowTracker(store))


def test_engines_are_written_before_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.identity().write(tmp_path)
    store, output = tmp_path / "mlruns", tmp_path / "out.ort"
    words = ["convert", str(model), "--convert-to", "ort", "--experiment", "e", "--store", str(store)]

    def lost(*args: object) -> None:
        assert output.exists()
        raise errors.LogError("lost")

    with monkeypatch.context() as context:
        context.setattr("trtops.tracking.builds.log_build", lost)
        assert main([*words, "-o", str(output)]) == 3
    assert output.exists()

    (tmp_path / "file").touch()
    assert main([*words, "-o", str(tmp_path / "file" / "out.ort")]) != 0
    assert main([*words, "--rebuild", "-o", str(output), "--save-tactics", str(tmp_path / "t.json")]) == 0
    assert json.loads((tmp_path / "t.json").read_text())

    runs = MlflowTracker(store).find("e")
    assert sorted(info.status for info in runs) == ["failed", "finished", "finished"]
    assert runs[0].verdict == "good"
