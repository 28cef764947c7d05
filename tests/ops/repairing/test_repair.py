"""Repair on real engines: what was bad passes, the config builds it again, and what the store has costs nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from tests.guide.planted import FAULTS
from trtops.cli.main import main
from trtops.comparator.report import Tolerances
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.repairing.config import RepairConfig
from trtops.ops.repairing.finals import retimed
from trtops.ops.repairing.op import repair
from trtops.ops.repairing.space import Outcome, Point, fastest
from trtops.spec import BuildConfig
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact

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
    report = tracker.load(first.run_id).read_bytes(Artifact.REPORT).decode()
    assert "Accuracy against latency" in report and "chosen: deny GeluApproximation" in report and "<svg" in report
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


def test_an_engine_that_keeps_every_node_is_built_and_called_fp32(tmp_path: Path) -> None:
    path = models.conv_net().write(tmp_path)
    check = CheckConfig(iterations=1, tolerances=Tolerances(atol=1e-6, rtol=1e-6), **QUICK)  # type: ignore[arg-type]

    result = repair(
        path, RepairConfig(build=BuildConfig(precision="fp16"), check=check, change=("keep",), max_builds=4)
    )

    assert result.chosen is not None and result.config is not None
    assert (result.config.build.precision, result.config.build.keep) == ("fp32", ())
    assert convert(path, result.config, tracker=MemoryTracker()).verdict == "good"


def test_engines_that_pass_are_timed_in_turn_whatever_they_seemed_to_take(tmp_path: Path) -> None:
    tracker, found = MemoryTracker(), {}
    for name, width, said in (("small", 8, 1.2), ("large", 512, 1.0), ("late", 8, 9.0), ("bad", 8, 0.1)):
        weight = models.random(512, width, scale=0.05)
        text = f"(float[64,512] x) => (float[64,{width}] y) {{ y = MatMul(x, w) }}"
        path = models.Case(models.model(text, {"w": weight}), {}, name=name).write(tmp_path)
        run = convert(path, ConvertConfig(check=CheckConfig(latency_runs=0, plots="never")), tracker=tracker)
        found[Point(measures=(name,))] = Outcome(good=name != "bad", error=0.0, latency_ms=said, run_id=run.run_id)

    timed = retimed(found, tracker, {"x": models.random(64, 512)}, rounds=5)

    assert {point.measures for point in timed} == {("large",), ("small",), ("late",)}
    large, small, late = (timed[Point(measures=(name,))].latency_ms for name in ("large", "small", "late"))
    assert max(small, late) < large
    assert fastest(found) == Point(measures=("large",)) and fastest(timed) != fastest(found)

    untimed = {point: replace(outcome, latency_ms=float("inf")) for point, outcome in found.items()}
    timed = retimed(untimed, tracker, {"x": models.random(64, 512)}, rounds=5)
    assert len(timed) == 3 and all(0 < outcome.latency_ms < 1000 for outcome in timed.values())
    gone = {point: replace(outcome, run_id="0" * 32) for point, outcome in found.items()}
    assert retimed(gone, tracker, {"x": models.random(64, 512)}, rounds=5) == {p: o for p, o in gone.items() if o.good}
