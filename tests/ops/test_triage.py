"""Triage of planted faults: kind and place are named. `python -m tests.triage.evaluate_faults` runs all."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from tests.triage.evaluate_faults import named
from tests.triage.planted import FAULTS, Planted
from trtops.cli.main import main
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.triaging.op import QUESTIONS, triage
from trtops.ops.triaging.result import TriageConfig
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact, Tag


def planted(name: str) -> Planted:
    [fault] = [candidate for candidate in FAULTS if candidate.name == name]
    return fault


@pytest.mark.parametrize(
    "name", ["wrong constant, dense", "range cut, dense", "not repeatable, dense", "shape at the edge, embedded"]
)
def test_kind_and_place_of_a_fault_are_named(name: str, tmp_path: Path) -> None:
    fault = planted(name)
    path, config = fault.write(tmp_path / "model")
    result = triage(path, config)
    assert named(fault, result), result.page()
    assert result.verdict == "bad" and result.remedies


def test_a_sound_engine_is_good(tmp_path: Path) -> None:
    case = models.conv_net().fixed()
    result = triage(case.write(tmp_path), TriageConfig(check=CheckConfig(latency_runs=0, plots="never")))
    assert (result.verdict, result.kind, result.headline) == ("good", "none", "nothing is wrong")


def test_triage_stops_after_its_time(tmp_path: Path) -> None:
    path, config = planted("overflow, dense").write(tmp_path)
    tracker = MemoryTracker()

    first = triage(path, replace(config, minutes=1e-9), tracker=tracker)

    assert first.verdict == "error" and first.next_question == QUESTIONS["data"].asks
    assert "Stopped after" in tracker.info(first.run_id).tags[Tag.ERROR]


def test_overflow_is_kept_with_its_smallest_case(tmp_path: Path) -> None:
    path, config = planted("overflow, dense").write(tmp_path / "model")
    tracker = MemoryTracker()

    result = triage(path, replace(config, output=str(tmp_path / "found")), tracker=tracker)

    assert result.kind == "overflow"
    assert [step.question for step in result.steps][-3:] == ["keep", "minimal", "bundle"]
    assert {info.kind for info in tracker.find(parent=result.run_id)} == {"triage_step"}
    steps = {step.question: step.run_id for step in result.steps}
    assert {info.kind for info in tracker.find(parent=steps["keep"])} == {"precision"}
    stored = tracker.load(result.run_id)
    assert {"triage/bundle.zip", "triage/minimal.onnx"} <= {a.path for a in stored.manifest.artifacts}
    assert len(onnx.load(tmp_path / "found" / "minimal.onnx").graph.node) < len(onnx.load(path).graph.node)
    assert "Which nodes must stay in FP32?" in stored.read_bytes(Artifact.REPORT).decode()
    assert "1. Is the data usable? **usable**" in result.page()


def test_data_with_nan_ends_the_questions(tmp_path: Path) -> None:
    case = models.conv_net().fixed()
    feed = {name: np.array(array) for name, array in case.feed.items()}
    [name] = feed
    feed[name].reshape(-1)[3] = np.nan
    np.savez(tmp_path / "x.npz", **feed)
    result = triage(case.write(tmp_path), TriageConfig(check=CheckConfig(data=str(tmp_path / "x.npz"))))
    assert (result.kind, result.places, len(result.steps)) == ("data", (name,), 1)


def test_every_answer_leads_to_a_known_question() -> None:
    for question in QUESTIONS.values():
        assert set(question.then.values()) <= QUESTIONS.keys()


def test_the_command_prints_each_question_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = planted("dead branch, dense").write(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    code = main(
        ["triage", str(path), "--golden-model", str(config.golden_model), "--load-inputs", str(config.check.data)]
    )
    printed = capsys.readouterr().out
    assert code == 1
    assert printed.count("Is the model sound, node by node?") == 1 and "(dead branch, " in printed
