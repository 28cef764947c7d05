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
from trtops.comparator.report import Tolerances
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.triaging.op import QUESTIONS, triage
from trtops.ops.triaging.result import TriageConfig
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact


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


def test_open_questions_have_their_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, config = planted("overflow, dense").write(tmp_path)
    tracker = MemoryTracker()

    nothing = triage(path, replace(config, minutes=1e-9), tracker=tracker)

    assert [step.question for step in nothing.open] == ["data", "structure", "shapes", "repeats", "golden", "build"]
    assert (nothing.verdict, nothing.exit_code) == ("unproven", 1) and "Is the data usable?" in nothing.headline
    assert str(nothing.next_step).startswith(f"trtops triage {path} --fp16") and "--minutes 1" in str(nothing.next_step)
    assert str(nothing.open[1].command) == f"trtops check lint {path}"

    # The time ends after the engine was built: what is known stays known.
    costly = QUESTIONS["divergence"]._replace(cost=lambda subject: (10**9, 0))
    monkeypatch.setitem(QUESTIONS, "divergence", costly)
    partly = triage(path, replace(config, minutes=5.0), tracker=tracker)
    assert (partly.verdict, partly.exit_code, partly.kind) == ("bad", 1, "none")
    [divergence] = partly.open
    assert str(divergence.command).startswith(f"trtops debug accuracy {path} --load-inputs") and "s." in partly.page()
    assert tracker.info(partly.run_id).verdict == "bad" and partly.steps[-1].question == "bundle"


def test_earlier_runs_answer_first(tmp_path: Path) -> None:
    fault = planted("range cut, dense")
    path, config = fault.write(tmp_path)
    tracker = MemoryTracker()
    check = CheckConfig(data=config.check.data)
    conversion = ConvertConfig(build=config.build, check=check, calibration_cache=config.calibration_cache)
    run_id = convert(path, conversion, tracker=tracker).run_id

    result = triage(path, config, tracker=tracker)
    in_no_time = triage(path, replace(config, minutes=1e-9), tracker=tracker)
    stricter = replace(config.check, tolerances=Tolerances(max_nrmse=1e-3))
    other = triage(path, replace(config, check=stricter), tracker=tracker)

    answers = {step.question: step for step in result.steps}
    assert named(fault, result) and run_id in answers["structure"].evidence[0]
    assert str(result.next_step).startswith(f"trtops calibrate {path} ")
    assert run_id in answers["build"].evidence[0] and not tracker.find(parent=answers["build"].run_id)
    assert "of rounding alone" in answers["precision"].evidence[0] and answers["precision"].builds == 0
    # Nothing was run, and the engine is known to be bad because of quantization.
    assert {step.question for step in in_no_time.steps} - {step.question for step in in_no_time.open} == {
        *("structure", "build", "precision")
    }
    assert in_no_time.verdict == "bad"
    # Within other limits, it is evaluated again.
    [evaluated] = tracker.find(parent=next(step.run_id for step in other.steps if step.question == "build"))
    assert evaluated.kind == "build"


def test_limits_below_rounding_are_named(tmp_path: Path) -> None:
    case = models.conv_net().fixed()
    np.savez(tmp_path / "feed.npz", **case.feed)
    check = CheckConfig(data=str(tmp_path / "feed.npz"), tolerances=Tolerances(atol=1e-12, rtol=1e-12))
    result = triage(case.write(tmp_path), TriageConfig(check=check))
    assert (result.verdict, result.kind, result.steps[-1].answer) == ("bad", "rounding", "the limits")


def test_overflow_is_kept_with_its_smallest_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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
    # The printed line keeps the nodes.
    assert result.next_step is not None and result.next_step.verb == "convert" and "--keep" in str(result.next_step)
    assert main(result.next_step.words()[1:]) == 0


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
