"""Repair on real engines: what was bad passes, the config builds it again, and what the store has costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guide.planted import FAULTS
from trtops.cli.main import main
from trtops.ops.judging.judgement import CheckConfig
from trtops.ops.repairing.config import RepairConfig
from trtops.ops.repairing.op import repair
from trtops.spec import BuildConfig
from trtops.tracking.memory import MemoryTracker

QUICK = {"latency_runs": 3, "warm_up": 0, "plots": "never"}


@pytest.mark.parametrize("name", ["tactic, dense"])
def test_an_engine_that_passes_is_found_built_by_convert_and_known_to_the_store(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [fault] = [each for each in FAULTS if each.name == name]
    path, asked = fault.write(tmp_path / "model")
    check = CheckConfig(data=asked.check.data, **QUICK)  # type: ignore[arg-type]
    config = RepairConfig(build=asked.build, check=check, output=str(tmp_path / "fixed.json"))
    tracker = MemoryTracker()

    first = repair(path, config, tracker=tracker)
    again = repair(path, config, tracker=tracker)

    assert first.verdict == "good" and first.chosen is not None
    assert first.chosen.measures == ("deny GeluApproximation",)
    assert (first.builds, first.reused) == (2, 0)
    assert (again.builds, again.reused) == (0, 2)
    assert not first.trials[0].outcome.good and first.picture().startswith(b"\x89PNG")
    assert {info.kind for info in tracker.find(parent=first.run_id)} == {"build"}
    monkeypatch.chdir(tmp_path)
    assert main(["convert", str(path), "--config", "fixed.json", "-o", "fixed.ort"]) == 0
    assert Path("fixed.ort").stat().st_size > 0


def test_that_nothing_helps_is_a_result(tmp_path: Path) -> None:
    [fault] = [each for each in FAULTS if each.name == "overflow, convolutional"]
    path, asked = fault.write(tmp_path / "model")
    check = CheckConfig(data=asked.check.data, **QUICK)  # type: ignore[arg-type]
    build = BuildConfig(precision="fp16")
    result = repair(path, RepairConfig(build=build, check=check, keep=("conv1",), change=("keep",)))
    assert (result.verdict, result.chosen, result.config) == ("bad", None, None)
    assert result.headline == "no engine passes"
