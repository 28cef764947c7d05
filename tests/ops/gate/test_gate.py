"""The gate on real engines of ONNX Runtime: unchanged ones pass, planted regressions are refused for what they are."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from tests import models
from tests.gates import (
    built,
    claiming,
    convolutions,
    kept,
    slow_build,
    ten_outputs,
    with_ballast,
    with_offset,
    with_wrong_weight,
    write,
)
from tests.hostile import plant_modules
from trtops import errors
from trtops.backend.engines import reference_runner
from trtops.backend.onnx.model import Model
from trtops.comparator.report import Tolerances
from trtops.ops.campaign.promote import resolve
from trtops.ops.engines.convert import convert
from trtops.ops.gate.config import GateConfig
from trtops.ops.gate.environments import Release, interpreter_of
from trtops.ops.gate.findings import decide, evaluate_measured
from trtops.ops.gate.history import HistoryConfig, evaluate_history
from trtops.ops.gate.matrix import MatrixConfig, gate_all, gate_matrix
from trtops.ops.gate.op import gate
from trtops.ops.gate.policy import AccuracyLimit, LatencyLimit, Limits, Policy, policy_of
from trtops.ops.gate.result import GateResult
from trtops.spec import BuildConfig, OnnxRuntimeOptions, TensorRTOptions
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact, Tag

FP32 = BuildConfig(options=OnnxRuntimeOptions(tactics=(), intra_op_threads=1))
INT8 = replace(FP32, precision="int8")
UNTIMED = Policy(limits=Limits(latency=None, memory=None))


def refused_for(result: GateResult) -> set[str]:
    return {finding.subject for finding in result.findings if finding.outcome == "refuse"}


def trial(**changes: object) -> GateConfig:
    return replace(GateConfig(build=FP32, policy=UNTIMED, register=False, keep_model=False), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module")
def tracker() -> MemoryTracker:
    return MemoryTracker()


@pytest.fixture(scope="module")
def heads(folder: Path) -> Path:
    return write(ten_outputs(), folder, "heads")


@pytest.fixture(scope="module")
def accepted(heads: Path, tracker: MemoryTracker) -> GateResult:
    return gate(heads, trial(register=True, keep_model=True), tracker=tracker)


@pytest.fixture(scope="module")
def again(accepted: GateResult, heads: Path, tracker: MemoryTracker) -> GateResult:
    lenient = Policy(limits=Limits(latency=LatencyLimit(ratio=3.0, rounds=4, max_rounds=200)))
    return gate(heads, trial(policy=lenient, register=True), tracker=tracker)


def test_the_first_candidate_is_evaluated_by_the_reference_and_registered(accepted, again, heads, tracker) -> None:
    assert accepted.decision == "accept"
    assert accepted.measured is not None and accepted.measured.accepted is None
    assert ("accepted", "tell") in {(finding.subject, finding.outcome) for finding in accepted.findings}
    assert accepted.version == "1" and accepted.alias == again.alias


def test_an_unchanged_candidate_passes_all_and_becomes_the_accepted_one(accepted, again, heads, tracker) -> None:
    assert again.decision == "accept" and not again.reasons
    assert {finding.subject for finding in again.findings if finding.outcome == "pass"} >= {
        "reference", "accepted outputs", "latency", "size", "memory", "build time", "precision",
    }  # fmt: skip
    assert again.measured is not None and again.measured.accepted is not None
    assert again.measured.accepted.run_id == accepted.run_id
    assert again.ratio is not None and 0 < again.ratio.low <= again.ratio.ratio <= again.ratio.high < 3
    assert all(output.width > 0 and output.distance_widths < 1 for output in again.measured.widths)
    assert resolve(heads, tracker=tracker).run_id == again.run_id


def test_the_run_keeps_the_numbers_from_which_the_verdict_follows(again, tracker) -> None:
    stored = tracker.load(again.run_id)

    kept_result = GateResult.from_json(stored.read_bytes(Artifact.GATE))
    assert kept_result.measured is not None
    assert evaluate_measured(kept_result.measured, kept_result.policy) == again.findings
    assert stored.info.tags[Tag.GATE] == "accept" and stored.info.verdict == "good"
    assert stored.info.metrics["gate", "size_ratio"] == pytest.approx(1)
    assert again.headline in stored.read_bytes(Artifact.GATE_PAGE).decode()
    report = stored.read_bytes(Artifact.REPORT).decode()
    assert "Latency of the candidate over that of the accepted engine" in report and "round 1: " in report
    assert "Distance of each output from the accepted one" in report and "<svg" in report
    strict = replace(kept_result.policy, limits=Limits(latency=LatencyLimit(ratio=0.05)))
    assert decide(evaluate_measured(kept_result.measured, strict)) == "refuse"


def test_numbers_beyond_any_one_limit_are_refused_for_that_alone(again) -> None:
    measured = again.measured
    candidate, layers = measured.candidate, measured.layers
    changed = {
        "build time": replace(measured, candidate=replace(candidate, build_seconds=candidate.build_seconds + 100)),
        "memory": replace(measured, candidate=replace(candidate, memory_bytes=candidate.memory_bytes + (1 << 30))),
        "size": replace(measured, candidate=replace(candidate, engine_bytes=2 * candidate.engine_bytes + (1 << 20))),
        "precision": replace(measured, layers=replace(layers, candidate_precisions=(("fp16", 0.5), ("fp32", 0.5)))),
    }

    found = {name: evaluate_measured(numbers, again.policy) for name, numbers in changed.items()}

    for name, findings in found.items():
        assert {finding.subject for finding in findings if finding.outcome == "refuse"} == {name}


def test_latencies_that_do_not_tell_ask_for_more_rounds_and_say_how_many(again) -> None:
    noisy = replace(again.measured, rounds=replace(again.measured.rounds, starts=((0.2, -0.2, 0.1, -0.1),) * 3))

    findings = evaluate_measured(noisy, Policy())

    assert decide(findings) == "measure more"
    [text] = [finding.text for finding in findings if finding.outcome == "open"]
    assert "more rounds" in text and "More measurement is needed" in text


def test_a_wrong_weight_is_refused_for_the_outputs_it_changes_against_the_accepted_ones(
    accepted, folder, tracker
) -> None:
    wrong = write(with_wrong_weight(ten_outputs()), folder / "wrong", "heads")

    result = gate(wrong, trial(), tracker=tracker)

    assert refused_for(result) == {"accepted outputs"}
    told = next(finding for finding in result.findings if finding.subject == "model")
    assert told.outcome == "tell" and "another model" in told.text


def test_one_output_of_ten_that_is_off_by_three_noise_widths_is_named(again, folder, tracker) -> None:
    width = next(output.width for output in again.measured.widths if output.name == "y7")
    off = write(with_offset(ten_outputs(), "y7", 3.2 * width), folder / "off", "heads")

    result = gate(off, trial(), tracker=tracker)

    assert refused_for(result) == {"accepted outputs"}
    assert [finding.output for finding in result.findings if finding.outcome == "refuse"] == ["y7"]


def test_an_engine_that_does_not_compute_what_its_model_says_is_refused_by_the_reference(
    heads, accepted, tracker, folder
) -> None:
    wrong = write(with_wrong_weight(ten_outputs(), 1.5), folder / "other", "heads")
    honest = built(heads, FP32)
    planted = kept(tracker, heads, replace(honest, engine=built(wrong, FP32).engine))

    result = gate(heads, trial(candidate=planted), tracker=tracker)

    assert refused_for(result) == {"reference", "accepted outputs"}
    assert result.holder == planted


def test_a_larger_engine_is_refused_for_its_size(accepted, folder, tracker) -> None:
    large = write(with_ballast(ten_outputs()), folder / "large", "heads")

    assert refused_for(gate(large, trial(), tracker=tracker)) == {"size"}


def test_slower_session_settings_are_refused_for_their_latency(folder, tracker) -> None:
    path = write(convolutions(), folder, "convolutions")
    usual = replace(FP32, options=OnnxRuntimeOptions(intra_op_threads=1))
    gate(path, trial(build=usual, register=True), tracker=tracker)
    planted = kept(tracker, path, slow_build(path, usual))

    patient = Policy(limits=Limits(latency=LatencyLimit(max_rounds=800)))
    result = gate(path, trial(build=usual, candidate=planted, policy=patient), tracker=tracker)

    assert refused_for(result) == {"latency"}, result.page()
    assert result.ratio is not None and result.ratio.low > 1.05


def test_a_precision_that_was_lost_is_refused_for_the_layers_that_lost_it(folder, tracker) -> None:
    path = write(convolutions(), folder, "quantized")
    first = gate(path, trial(build=INT8, register=True), tracker=tracker)
    planted = kept(tracker, path, claiming(built(path, FP32), INT8))

    result = gate(path, trial(build=INT8, candidate=planted), tracker=tracker)

    assert first.decision == "accept", first.page()
    assert refused_for(result) == {"precision"}
    assert "compute in fp32" in next(f.text for f in result.findings if f.subject == "precision")


def test_precisions_are_accepted_beside_one_another(heads, accepted, folder, tracker) -> None:
    half = gate(heads, trial(build=replace(FP32, precision="fp16"), register=True), tracker=tracker)

    assert half.measured is not None and half.measured.accepted is None  # the accepted one is FP32
    assert half.alias == f"{accepted.alias}_fp16"
    assert resolve(heads, tracker=tracker).run_id != half.run_id


def test_where_the_first_is_to_be_refused_it_is_and_nothing_is_registered(folder, tracker) -> None:
    path = models.identity().write(folder, "never")

    result = gate(path, trial(register=True, policy=replace(UNTIMED, first="refuse")), tracker=tracker)

    assert refused_for(result) == {"accepted"}
    assert tracker.aliases("never") == {} and result.version == ""


def test_a_candidate_that_cannot_be_built_is_a_refusal_with_its_reason(folder, tracker) -> None:
    path = models.no_kernel().write(folder, "no_kernel")

    result = gate(path, trial(check=GateConfig().check), tracker=tracker)

    assert refused_for(result) == {"build"}
    assert result.measured is None and "kernel" in result.reasons[0]
    assert tracker.info(result.run_id).verdict == "bad"


def test_labels_that_a_candidate_gets_wrong_more_often_are_refused(folder, tracker) -> None:
    proto, data, labels = convolutions(8, 8, 1), folder / "images.npz", folder / "labels.npy"
    image = models.random(2, 3, 8, 8, seed=1)
    path = write(proto, folder, "labelled")
    with reference_runner(Model.load(path)) as runner:
        right = np.argmax(runner.infer({"image": image})["scores"], axis=-1)
    np.savez(data, image=image)
    np.save(labels, right)
    check = replace(GateConfig().check, data=str(data), labels=str(labels))
    gate(path, trial(check=check, register=True), tracker=tracker)
    head = next(tensor for tensor in proto.graph.initializer if tensor.name == "fc")
    head.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(head), "fc"))
    trained_again = write(proto, folder / "again", "labelled")
    told = Policy(limits=Limits(latency=None, accuracy=AccuracyLimit(other_model="tell")))

    result = gate(trained_again, trial(check=check, policy=told), tracker=tracker)

    assert refused_for(result) == {"accuracy"}
    assert result.measured is not None and result.measured.candidate_top1 is not None
    assert (result.measured.candidate_top1.actual, result.measured.candidate_top1.samples) == (0.0, 2)


def test_an_engine_of_a_release_that_is_not_here_cannot_be_compared_with(heads, tracker) -> None:
    build = built(heads, FP32)
    environment = replace(build.engine.environment, backend_version="0.9.9")
    gone = kept(tracker, heads, replace(build, engine=replace(build.engine, environment=environment)))

    result = gate(heads, trial(accepted=gone), tracker=tracker)

    assert refused_for(result) == {"accepted"}
    assert "0.9.9" in result.reasons[0] and "Give that release" in result.reasons[0]


@pytest.mark.parametrize(("build", "device"), [(FP32, "7"), (BuildConfig(options=TensorRTOptions()), "cpu")])
def test_a_single_candidate_on_a_device_that_its_back_end_does_not_have_is_refused(
    build: BuildConfig, device: str, heads, tracker
) -> None:
    config = MatrixConfig(models=(str(heads),), devices=(device,), gate=trial(build=build))

    result = gate_all(config, tracker=tracker, experiment="device")

    assert isinstance(result, GateResult) and refused_for(result) == {"device"}
    assert tracker.info(result.run_id).verdict == "bad"


def test_a_matrix_goes_on_past_what_cannot_be_had(heads, folder, tracker, monkeypatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("TRTOPS_HOME", str(folder / "home"))
    (folder / "downloads").mkdir()
    plant_modules(folder / "downloads", folder / "imported")
    monkeypatch.chdir(folder / "downloads")
    pins = folder / "old.txt"
    pins.write_text("onnxruntime==0.0.1\n")
    config = MatrixConfig(
        models=(str(heads), str(folder / "missing.onnx")),
        releases=(
            Release.parse(f"same={sys.prefix}"),
            Release.parse(f"old={pins}"),
            Release.parse("gone=/no/such/place"),
        ),
        devices=("cpu", "7"),
        gate=trial(),
    )

    result = gate_matrix(config, tracker=tracker)

    by_place = {(Path(c.model).stem, c.release, c.device): c for c in result.cells}
    assert len(by_place) == len(result.cells) == 12
    assert by_place["heads", "same", "cpu"].decision == "accept"
    assert "old.txt" in by_place["heads", "old", "cpu"].reasons[0]
    assert "/no/such/place" in by_place["heads", "gone", "cpu"].reasons[0]
    assert by_place["heads", "same", "7"].decision == "refuse" and "device" in by_place["heads", "same", "7"].reasons[0]
    assert by_place["missing", "same", "cpu"].decision == "error"
    children = tracker.find("gate", parent=result.run_id)
    assert {child.id for child in children} >= {by_place["heads", "same", "cpu"].run_id}
    assert result.verdict == "bad" and "1 accepted" in result.headline
    assert not (folder / "home" / "environments" / "onnxruntime").exists()
    assert not (folder / "imported").exists()


def test_an_accepted_cell_of_a_matrix_is_registered_once_and_after_all_of_them(folder, tracker) -> None:
    """Cells of one precision are no yardstick for each other: each is compared with what was accepted before the matrix."""
    path = write(convolutions(8, 8, 1), folder, "small")
    releases = (Release(name="here"), Release.parse(f"same={sys.prefix}"))

    result = gate_matrix(
        MatrixConfig(models=(str(path),), precisions=("fp32", "fp16"), releases=releases, gate=trial(register=True)),
        tracker=tracker,
    )

    assert [cell.decision for cell in result.cells] == ["accept"] * 4
    assert not any(cell.compared for cell in result.cells)
    assert [cell.version for cell in result.cells] == ["1", "2", "3", "4"]
    assert {alias.rpartition("_")[2] == "fp16" for alias in tracker.aliases("small")} == {True, False}
    assert resolve(path, tracker=tracker).run_id == result.cells[1].run_id


def test_a_release_is_read_from_a_line() -> None:
    assert Release.parse("new=pins/ort.txt") == Release(name="new", constraints="pins/ort.txt")
    assert Release.parse("ort-1.31.txt") == Release(name="ort-1.31", constraints="ort-1.31.txt")
    assert Release.parse("/opt/env") == Release(name="env", python="/opt/env")
    assert interpreter_of(Release.parse(sys.executable), "onnxruntime") == sys.executable
    with pytest.raises(errors.ConfigError, match="bin/python"):
        interpreter_of(Release.parse("/no/such/env"), "onnxruntime")
    with pytest.raises(errors.ConfigError, match="one of them"):
        Release(name="both", constraints="a.txt", python="b")
    with pytest.raises(errors.ConfigError, match="'x'"):
        MatrixConfig(models=("m",), releases=(Release.parse("x=a.txt"), Release.parse("x=b.txt")))


def test_history_is_reevaluated_and_limits_are_proposed(folder) -> None:
    tracker = MemoryTracker()
    path = write(ten_outputs(), folder / "history", "heads")
    first, second = (gate(path, trial(register=True), tracker=tracker) for _ in range(2))
    converted = convert(path, tracker=tracker)

    usual = evaluate_history(HistoryConfig(), tracker=tracker)
    wary = evaluate_history(HistoryConfig(policy=replace(UNTIMED, first="refuse")), tracker=tracker)
    zero = policy_of(Tolerances(atol=0, rtol=0, check_dtypes=True, max_l2=-1.0))
    exact = evaluate_history(HistoryConfig(policy=zero, accepted_only=False), tracker=tracker)
    named = evaluate_history(HistoryConfig(runs=(converted.run_id[:8],)), tracker=tracker)

    assert usual.verdict == "good" and [row.run_id for row in usual.evaluated] == [second.run_id, first.run_id]
    assert [row.run_id for row in wary.failing] == [first.run_id]
    assert {row.run_id for row in exact.failing} == {first.run_id, second.run_id, converted.run_id}
    assert [row.evaluated for row in named.evaluated] == ["reference"]
    proposal = next(p for p in usual.proposals if p.output == "y3")
    assert proposal.runs == 2 and proposal.noise is not None
    assert proposal.limit == pytest.approx(proposal.largest + 3 * proposal.noise)


def test_limits_by_widths_can_be_given_by_output_and_told_for_other_models(accepted, folder, tracker) -> None:
    wrong = write(with_wrong_weight(ten_outputs()), folder / "wrong2", "heads")
    spared = AccuracyLimit(widths_per_output={f"y{i}": None for i in range(10)})
    told = AccuracyLimit(other_model="tell")

    first = gate(wrong, trial(), tracker=tracker)

    assert first.measured is not None
    for limit in (spared, told):
        findings = evaluate_measured(first.measured, Policy(limits=Limits(latency=None, accuracy=limit)))
        assert decide(findings) == "accept"
