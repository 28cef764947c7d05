"""Convert when the store fails at any moment: the engine is returned, and its run is spooled and uploaded later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import models
from tests.tracking.test_offline import NEVER, Gate, GatedTracker, come_back
from trtops import errors
from trtops.backend.base import Build
from trtops.cli.main import main
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.spool import Spool, upload

CONFIG = ConvertConfig(check=CheckConfig(latency_runs=0, plots="never"))


def test_built_engines_survive_store_outages(tmp_path: Path) -> None:
    model = models.identity().write(tmp_path)
    calls, moment, kept, refused = NEVER, 0, 0, 0
    while moment < calls:
        memory = GatedTracker(Gate(range(moment, NEVER)))
        tracker = OfflineTracker(memory, Spool(tmp_path / str(moment)))
        reported: list[Build] = []
        try:
            result = convert(model, CONFIG, tracker=tracker, built=reported.append)
        except errors.TrackingUnavailableError:
            assert not reported  # the store failed before the build
            refused += 1
            wanted, verdict = "failed", "error"
        else:
            assert result.verdict == "good"
            wanted, verdict = "finished", "good"
        if memory.gate.calls <= moment:
            calls = moment  # the store never failed
        kept += len(tracker.spool.runs())
        come_back(memory)
        assert all(not each.why for each in upload(memory, tracker.spool))

        (info,) = memory.find("identity")
        assert (info.status, info.verdict) == (wanted, verdict), moment
        if wanted == "finished":
            plan = memory.load(info.id).read_bytes("engine/engine.ort")
            assert plan == reported[0].engine.plan
        moment += 1
    assert refused <= 3 and kept >= 10


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

    from trtops.tracking.mlflow import MlflowTracker

    runs = MlflowTracker(store).find("e")
    assert sorted(info.status for info in runs) == ["failed", "finished", "finished"]
    assert runs[0].verdict == "good"
