"""The gate on real engines of ONNX Runtime: unchanged ones pass, planted regressions are refused for what they are."""

import itertools
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from onnx import numpy_helper

from tests import gates, models
from tests.hostile import plant_modules
from tests.long_runs import LONG
from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.runner import reference_runner
from trtops.backend.worker import IsolatedBackend
from trtops.metadata import DataType, TensorMetadata
from trtops.ops.evaluation import relations
from trtops.ops.gate import across_releases, distribution, engine_process, measurement
from trtops.ops.gate.across_releases import accepted_candidates, explain
from trtops.ops.gate.engine_process import EngineProcess, ProcessRunner, Rounds, save_feeds
from trtops.ops.gate.findings import Finding, decide, evaluate_measured
from trtops.ops.gate.matrix import MatrixResult, gate_all
from trtops.ops.gate.measurement import GateSession, Measurement, differing_choices
from trtops.ops.gate.op import approve, gate, registered
from trtops.ops.gate.policy import AccuracyLimit, GateConfig, LatencyLimit, Limits, Policy
from trtops.ops.gate.releases import HERE, interpreter_of, name_of
from trtops.ops.gate.result import GateResult
from trtops.ops.gate.tolerance import BuildShare
from trtops.ops.registry.accepted import resolve
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.system import worker
from trtops.tactics.record import TacticChoice, TacticRecord
from trtops.tracking import builds
from trtops.tracking.base import EngineQuery, tracked
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact, Tag

FP32 = BuildConfig(options=OnnxRuntimeOptions(tactics=(), intra_op_threads=1))
INT8 = replace(FP32, precision="int8")
UNTIMED = Policy(limits=Limits(latency=None))


def refused_for(result: GateResult) -> set[str]:
    return {finding.subject for finding in result.findings if finding.outcome == "refuse"}


def trial(**changes: object) -> GateConfig:
    return replace(GateConfig(build=FP32, policy=UNTIMED, register=False, keep_model=False), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module")
def heads(folder: Path) -> Path:
    return gates.write(gates.ten_outputs(), folder, "heads")


@pytest.fixture(scope="module")
def accepted(heads: Path, tracker: MemoryTracker) -> GateResult:
    return gate(heads, trial(register=True, keep_model=True), tracker=tracker)


@pytest.fixture(scope="module")
def again(accepted: GateResult, heads: Path, tracker: MemoryTracker) -> GateResult:
    lenient = Policy(limits=Limits(latency=LatencyLimit(ratio=3.0)))
    two_threads = replace(FP32, options=replace(FP32.options, intra_op_threads=2))  # a rebuild may be equal bit for bit
    return gate(heads, trial(build=two_threads, policy=lenient, register=True), tracker=tracker)


def test_first_candidate_is_compared_with_the_reference(accepted, again, heads, tracker) -> None:
    assert accepted.decision == "accept"
    assert accepted.measured.accepted is None
    assert ("accepted", "note") in {(finding.subject, finding.outcome) for finding in accepted.findings}
    assert accepted.version == "1" and accepted.alias == again.alias


def test_failed_registration_is_a_finding(accepted, tracker, monkeypatch) -> None:
    def register(*args: object, **options: object) -> None:
        raise errors.TrackingUnavailableError("the store is gone")

    monkeypatch.setattr(tracker, "register", register)
    result = registered(accepted, trial(register=True), tracker)

    assert (result.decision, result.exit_code) == ("error", 3)
    assert "accepted, but not registered: the store is gone" in result.reasons[-1]


def test_broken_relation_is_refused(accepted: GateResult) -> None:
    checked = accepted.measured.evaluation.self_check
    assert checked.named("skipped") == ("batch size", "shape order", "two contexts")
    wrong = replace(checked.relations[0], outcome="broken", output="y3", largest=2.0)
    broken = replace(checked, relations=(wrong, *checked.relations[1:]))
    evaluation = replace(accepted.measured.evaluation, self_check=broken)
    measured = replace(accepted.measured, evaluation=evaluation)
    [refusal] = [finding for finding in evaluate_measured(measured, UNTIMED) if finding.outcome == "refuse"]
    assert refusal.subject == "self-check"
    assert refusal.text.startswith("equal rows of a batch have different results: `y3` differs by 2")


def test_unchanged_candidate_is_accepted(accepted, again, heads, tracker) -> None:
    assert again.decision == "accept" and not again.reasons
    assert {finding.subject for finding in again.findings if finding.outcome == "pass"} >= {
        "reference", "self-check", "accepted outputs", "latency", "size", "precision", "interface",
    }  # fmt: skip
    assert again.measured.accepted.run_id == accepted.run_id
    assert 0 < again.ratio.low <= again.ratio.ratio <= again.ratio.high < 3
    assert all(output.width > 0 and output.distance_widths < 1 for output in again.measured.widths)
    assert resolve(heads, tracker=tracker).run_id == again.run_id
    pair = again.measured.candidate.speed_digest, accepted.measured.candidate.speed_digest
    same = trial(candidate=again.run_id, accepted=accepted.run_id, policy=again.policy)
    with GateSession() as session:
        session.timed[pair] = again.measured.rounds
        assert gate(heads, same, tracker=tracker, session=session).measured.rounds is again.measured.rounds


@pytest.mark.usefixtures("children")
def test_gates_of_one_run_share_processes(accepted, heads, tracker) -> None:
    with GateSession() as session:
        for _ in range(2):
            gate(heads, trial(accepted=accepted.run_id, policy=UNTIMED), tracker=tracker, session=session)
        assert [session.worker(side, HERE, "").starts for side in ("candidate", "accepted")] == [1, 1]


@pytest.mark.usefixtures("children")
def test_engine_is_timed_in_a_process_of_its_own(heads, tmp_path) -> None:
    engine, feeds = gates.built(heads, FP32).engine, tmp_path / "feeds.npz"
    save_feeds([{"x": models.random(2, 32)}], feeds)
    with worker.Worker() as child:
        process = EngineProcess(IsolatedBackend("onnxruntime", worker=child), engine, feeds, ("wall", "cpu-time"))
        process.reopen()
        times, own = process.visit(3, None), process._fresh
        process.close()
    assert [len(seconds) for seconds in times] == [3, 3] and min(times[0]) > 0
    assert own is not None and (own.starts, child.starts) == (1, 1)


def test_run_stores_the_numbers_behind_the_verdict(again, tracker) -> None:
    stored = tracker.load(again.run_id)

    kept_result = GateResult.from_json(stored.read_bytes(Artifact.GATE))
    assert evaluate_measured(kept_result.measured, kept_result.policy) == again.findings
    assert stored.info.tags[Tag.GATE] == "accept" and stored.info.verdict == "good"
    assert stored.info.metrics["gate", "size_ratio"] == pytest.approx(1)
    report = stored.read_bytes(Artifact.REPORT).decode()
    assert (
        again.headline in report
        and "Latency of the candidate relative to the accepted engine" in report
        and "round 1: " in report
    )
    assert "distance in widths" in report and "<svg" in report
    strict = replace(kept_result.policy, limits=Limits(latency=LatencyLimit(ratio=0.05)))
    assert decide(evaluate_measured(kept_result.measured, strict)) == "refuse"


def test_each_exceeded_limit_is_the_only_refusal(again) -> None:
    candidate = again.measured.candidate
    for name, changed in {
        "size": {"engine_bytes": 2 * candidate.engine_bytes + (1 << 20)},
        "precision": {"kernels": (("fp32", 5), ("fp16", 5))},
    }.items():
        findings = evaluate_measured(replace(again.measured, candidate=replace(candidate, **changed)), again.policy)
        assert {finding.subject for finding in findings if finding.outcome == "refuse"} == {name}

    apart = {"wall": tuple((value, value) for value in (0.2, -0.2, 0.1, -0.1))}
    noisy = replace(again.measured, rounds=replace(again.measured.rounds, starts=apart))
    findings = evaluate_measured(noisy, Policy())
    assert decide(findings) == "undecided"
    [text] = [finding.text for finding in findings if finding.outcome == "open"]
    assert "a change of 5.0% needs about" in text and "use --clock cpu-time or instructions" in text
    # Without rounds nothing is known of the latency, unless both engines are the same.
    unmeasured = replace(again.measured, rounds=None)
    assert decide(evaluate_measured(unmeasured, Policy())) == "undecided"
    same = replace(candidate, speed_digest=again.measured.accepted.speed_digest)
    assert decide(evaluate_measured(replace(unmeasured, candidate=same), Policy())) == "accept"


def test_changed_interface_is_refused_unless_allowed(again) -> None:
    """Names, order, shapes and dtypes of inputs and outputs are compared, also where the numbers are equal."""
    candidate = again.measured.candidate
    first, *others = candidate.interface
    for interface, text in (
        ((*others, (first[0], "float32 [2, 32, 1]")), f"{first[0]} is float32 [2, 32, 1], float32 [2, 32] before"),
        ((("input `z`", first[1]), *others), f"input `z` is new; {first[0]} is missing"),
        ((*reversed(others), first), "the order is output `y9`, "),
    ):
        changed = replace(again.measured, candidate=replace(candidate, interface=interface))
        findings = evaluate_measured(changed, again.policy)
        assert [f.text for f in findings if f.outcome == "refuse"] == [next(f.text for f in findings if text in f.text)]
        allowed = Policy(limits=replace(again.policy.limits, interface=False))
        assert decide(evaluate_measured(changed, allowed)) == "accept"


def test_other_inputs_are_refused_by_interface(accepted, folder, tracker) -> None:
    proto = gates.ten_outputs()
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "image"
    renamed = gates.write(proto, folder, "renamed")
    result = gate(renamed, trial(accepted=accepted.holder), tracker=tracker)
    assert result.decision == "refuse" and refused_for(result) == {"interface"}
    assert "does not run on the candidate's inputs" in result.reasons[0]


@pytest.mark.usefixtures("children")
def test_gate_ends_within_its_budget(heads, accepted, tracker, monkeypatch) -> None:
    """Steps that do not finish in time leave the candidate undecided; nothing is registered."""
    begin = time.monotonic()
    short = gate(heads, trial(policy=Policy(), minutes=0.001, register=True), tracker=tracker)
    assert time.monotonic() - begin < 30 and (short.decision, short.exit_code, short.verdict) == (
        "undecided",
        4,
        "unproven",
    )
    assert "raise --minutes" in short.reasons[0] and not short.version
    late = trial(
        accepted=accepted.holder,
        build=replace(FP32, options=replace(FP32.options, intra_op_threads=2)),
        policy=Policy(),
    )
    none = Rounds(starts={"wall": ()}, candidate_ms=0.0, accepted_ms=0.0, seconds=0.0, ended=True)
    monkeypatch.setattr(measurement, "measure_rounds", lambda *args, **kwargs: none)
    undecided = gate(heads, late, tracker=tracker)
    assert undecided.exit_code == 4 and undecided.headline == "undecided because of latency"
    assert undecided.measured.evaluation.verdict == "good"  # what was measured is kept

    approval = {"person": "Ada", "reason": "seen by hand", "tracker": tracker}
    refused = approve(undecided, late, accept=False, **approval)
    assert (refused.decision, refused.headline) == ("refuse", "refused because of approval")
    approved = approve(undecided, replace(late, register=True, name="by hand"), accept=True, **approval)
    info = tracker.info(approved.run_id)
    assert approved.decision == "accept" and approved.version == "1" and info.tags[Tag.GATE] == "accept"
    assert (info.params["decides"], info.params["person"]) == (undecided.run_id, "Ada")
    assert info.tags[Tag.EVIDENCE] == undecided.holder
    for other in (approved, short):
        with pytest.raises(errors.ConfigError, match="needs no approval"):
            approve(other, late, accept=True, **approval)
    for wrong in ({"minutes": 0}, {"clock": "cpu-time", "build": BuildConfig().on_backend("tensorrt")}):
        with pytest.raises(errors.ConfigError):
            trial(**wrong)


def test_changed_models_are_refused_for_the_change(again, folder, tracker) -> None:
    width = next(output.width for output in again.measured.widths if output.name == "y7")
    changed = {
        "wrong": gates.with_wrong_weight(gates.ten_outputs()),
        "off": gates.with_offset(gates.ten_outputs(), "y7", 3.2 * width),
        "large": gates.with_ballast(gates.ten_outputs()),
    }
    wrong, off, large = (
        gate(gates.write(proto, folder / name, "heads"), trial(), tracker=tracker) for name, proto in changed.items()
    )

    assert refused_for(wrong) == refused_for(off) == {"accepted outputs"} and refused_for(large) == {"size"}
    assert [finding.output for finding in off.findings if finding.outcome == "refuse"] == ["y7"]
    note = next(finding for finding in wrong.findings if finding.subject == "model")
    assert note.outcome == "note" and "another model" in note.text
    # Widths may differ by output.
    spared = AccuracyLimit(widths_per_output={f"y{i}": None for i in range(10)})
    findings = evaluate_measured(wrong.measured, Policy(limits=Limits(latency=None, accuracy=spared)))
    assert decide(findings) == "accept"


def test_engine_of_another_model_is_refused(heads, accepted, tracker, folder) -> None:
    wrong = gates.write(gates.with_wrong_weight(gates.ten_outputs(), 1.5), folder / "other", "heads")
    honest = gates.built(heads, FP32)
    planted = gates.kept(tracker, heads, replace(honest, engine=gates.built(wrong, FP32).engine))

    result = gate(heads, trial(candidate=planted), tracker=tracker)

    assert refused_for(result) == {"reference", "accepted outputs"}
    assert result.holder == planted


@pytest.mark.usefixtures(*("children",) if LONG else ())
def test_slower_settings_are_refused_for_latency(folder, tracker) -> None:
    path = gates.write(gates.convolutions(), folder, "convolutions")
    usual = replace(FP32, options=OnnxRuntimeOptions(intra_op_threads=1))
    gate(path, trial(build=usual, register=True), tracker=tracker)
    planted = gates.kept(tracker, path, gates.slow_build(path, usual))

    result = gate(path, trial(build=usual, candidate=planted, policy=Policy()), tracker=tracker)

    assert refused_for(result) == {"latency"}, result.page()
    assert result.ratio.low > 1.05


def test_lost_precision_is_refused(folder, tracker) -> None:
    path = gates.write(gates.convolutions(), folder, "quantized")
    first = gate(path, trial(build=INT8, register=True), tracker=tracker)
    planted = gates.kept(tracker, path, gates.claiming(gates.built(path, FP32), INT8))

    result = gate(path, trial(build=INT8, candidate=planted), tracker=tracker)

    assert first.decision == "accept", first.page()
    assert refused_for(result) == {"precision"}
    assert "compute in fp32" in next(f.text for f in result.findings if f.subject == "precision")


def test_each_precision_has_its_own_alias(heads, accepted, folder, tracker) -> None:
    half = gate(heads, trial(build=replace(FP32, precision="fp16"), register=True), tracker=tracker)

    assert half.measured.accepted is None  # the accepted one is FP32
    assert half.alias == f"{accepted.alias}_fp16"
    assert resolve(heads, tracker=tracker).run_id != half.run_id


def test_failed_build_is_a_refusal(folder, tracker) -> None:
    path = models.no_kernel().write(folder, "no_kernel")

    result = gate(path, trial(check=GateConfig().check), tracker=tracker)

    assert refused_for(result) == {"build"}
    assert result.measured is None and "kernel" in result.reasons[0]
    assert tracker.info(result.run_id).verdict == "bad"


def test_lower_accuracy_on_labels_is_refused(folder, tracker) -> None:
    proto, data, labels = gates.convolutions(8, 8, 1), folder / "images", folder / "labels.npy"
    path = gates.write(proto, folder, "labelled")
    data.mkdir()
    right = []
    with reference_runner(Model.load(path)) as runner:
        for seed in range(6):
            image = models.random(2, 3, 8, 8, seed=seed)
            np.save(data / f"{seed}.npy", image)
            right.append(np.argmax(runner.infer({"image": image})["scores"], axis=-1))
    np.save(labels, np.concatenate(right))
    check = replace(GateConfig().check, data=str(data), labels=str(labels))
    gate(path, trial(check=check, register=True), tracker=tracker)
    head = next(tensor for tensor in proto.graph.initializer if tensor.name == "fc")
    head.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(head), "fc"))
    trained_again = gates.write(proto, folder / "again", "labelled")
    lenient = Policy(limits=Limits(latency=None, accuracy=AccuracyLimit(widths=None)))

    result = gate(trained_again, trial(check=check, policy=lenient), tracker=tracker)

    assert refused_for(result) == {"accuracy"}
    assert [(score.actual, score.golden) for score in result.measured.tasks] == [(0.0, 1.0)]


def test_accepted_engine_of_missing_release_is_reported(heads, tracker) -> None:
    build = gates.built(heads, FP32)
    environment = replace(build.engine.environment, backend_version="0.9.9")
    gone = gates.kept(tracker, heads, replace(build, engine=replace(build.engine, environment=environment)))

    result = gate(heads, trial(accepted=gone), tracker=tracker)

    several = gate_all((heads,), trial(accepted=gone, distribution=BuildShare(builds=2), minutes=60.0), tracker=tracker)
    assert refused_for(result) == refused_for(several) == {"accepted"} and several.candidate_builds == 0
    assert "0.9.9" in result.reasons[0] and "Name that release" in result.reasons[0]


def test_accepted_engines_are_chosen_by_kernel(accepted, tracker, monkeypatch) -> None:
    [(_, version), *_] = tracker.accepted()
    queries, versions = [], [(tracker.info(version.run_id), None)]
    monkeypatch.setattr(tracker, "engines", lambda query: queries.append(query) or versions)

    every = {name for name, _ in accepted_candidates(trial(), (HERE,), tracker, "")}
    [(chosen, opened)] = accepted_candidates(trial(), (HERE,), tracker, "gemm")
    versions.clear()

    assert chosen in every and opened()[1].accepted == version.run_id
    assert not [*accepted_candidates(trial(), (HERE,), tracker, "gemm")]
    assert queries == [EngineQuery(kernel="gemm", accepted=True)] * 2


def test_matrix_continues_after_failures(heads, folder, tracker, monkeypatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("TRTOPS_HOME", str(folder / "home"))
    (folder / "downloads").mkdir()
    plant_modules(folder / "downloads", folder / "imported")
    monkeypatch.chdir(folder / "downloads")
    pins = folder / "old.txt"
    pins.write_text("onnxruntime==0.0.1\n")
    releases = (gates.existing_release(folder / "releases", "same"), str(pins), "/no/such/gone.txt")

    result = gate_all((heads, folder / "missing.onnx"), trial(), releases=releases, tracker=tracker)

    assert isinstance(result, MatrixResult)
    by_place = {(Path(c.subject).stem, c.release): c for c in result.cells}
    assert len(by_place) == len(result.cells) == 6
    assert by_place["heads", "same"].decision == "accept"
    assert "old.txt" in by_place["heads", "old"].reasons[0] and "No matching" in by_place["heads", "old"].reasons[0]
    assert "/no/such/gone.txt is not a constraints file" in by_place["heads", "gone"].reasons[0]
    assert by_place["missing", "same"].decision == "error"
    children = tracker.find("gate", parent=result.run_id)
    assert {child.id for child in children} >= {by_place["heads", "same"].run_id}
    assert result.verdict == "bad" and "1 accepted" in result.headline
    assert not (folder / "home" / "environments" / "onnxruntime").exists()
    assert not (folder / "imported").exists()


def test_matrix_registers_accepted_candidates_at_the_end(folder, tracker, monkeypatch) -> None:
    """Each cell is compared with the engine accepted before the matrix, not with another cell."""
    monkeypatch.setenv("TRTOPS_HOME", str(folder / "small_home"))
    path = gates.write(gates.convolutions(8, 8, 1), folder, "small")
    releases = (HERE, gates.existing_release(folder / "releases", "equal"))

    result = gate_all((path,), trial(register=True), precisions=("fp32", "fp16"), releases=releases, tracker=tracker)

    assert [cell.decision for cell in result.cells] == ["accept"] * 4
    assert not any(cell.measured.accepted for cell in result.cells)
    assert [cell.version for cell in result.cells] == ["1", "2", "3", "4"]
    assert {alias.rpartition("_")[2] == "fp16" for alias in tracker.aliases("small")} == {True, False}
    assert resolve(path, tracker=tracker).run_id == result.cells[1].run_id


def test_release_is_one_constraints_file(folder, tracker) -> None:
    assert name_of("pins/ort-1.31.txt") == "ort-1.31" and interpreter_of(HERE, "onnxruntime") is None
    for path in ("/no/such/env", sys.executable, sys.prefix):
        with pytest.raises(errors.ConfigError, match="not a constraints file"):
            interpreter_of(path, "onnxruntime")
    with pytest.raises(errors.ConfigError, match="same name"):
        gate_all(("m",), releases=("a/x.txt", "b/x.txt"), tracker=tracker)


DISTRIBUTION = trial(build=INT8, distribution=BuildShare(builds=20), minutes=60.0, name="quantized heads")


@pytest.fixture(scope="module")
def sound_and_bad(heads, tracker) -> tuple[GateResult, GateResult]:
    """Gates of an INT8 engine and of one that computes in FP32, which a gate on builds takes for its own.

    Without tactics the engines are the same every time.
    """
    sound = gate(heads, replace(DISTRIBUTION, distribution=BuildShare(), use_deny_list=False), tracker=tracker)
    planted = gates.kept(tracker, heads, gates.claiming(gates.built(heads, FP32), INT8))
    return sound, gate(heads, replace(DISTRIBUTION, accepted=sound.holder, candidate=planted), tracker=tracker)


@pytest.fixture
def planted_builds(sound_and_bad, tracker, monkeypatch) -> Callable[[Collection[int]], GateConfig]:
    """Let some builds of a gate on builds compute in FP32 instead of INT8; returns the gate's config."""
    held = {gate_result.decision: builds.load_build(tracker.load(gate_result.holder)) for gate_result in sound_and_bad}

    def plant(numbers: Collection[int]) -> GateConfig:
        counter = itertools.count()

        def gate_one(model: Path, config: GateConfig, **logged: object) -> GateResult:
            gate_result = sound_and_bad[next(counter) in numbers]
            with tracked(tracker, "heads", "gate", kind="gate", parent=logged["parent"]) as run:
                build = held[gate_result.decision]
                builds.log_spec(run, build.spec, build.engine.environment)
                builds.log_build(run, build, Model.load(model).info, ".ort")
                run.set_tags({Tag.GATE: gate_result.decision})
                run.finish(gate_result.verdict)
            return replace(gate_result, run_id=run.id, holder=run.id)

        monkeypatch.setattr(distribution, "gate", gate_one)
        return DISTRIBUTION

    return plant


def test_one_bad_build_in_ten_is_refused(heads, planted_builds, tracker) -> None:
    result = gate_all((heads,), planted_builds({4, 14}), tracker=tracker)

    assert result.verdict == "bad" and result.headline == "refused because of builds"
    assert (result.outside, result.candidate_builds) == (2, 14)
    [note] = [finding.text for finding in result.findings if finding.subject == "candidate builds"]
    assert note.startswith("2 of 14 refused for precision: 100% of the kernels compute in fp32")
    assert [build.number for build in result.builds if build.decision == "refuse"] == [5, 15]
    assert result.tactics.bad == 2 and result.tactics.set_difference
    stored = tracker.load(result.run_id)
    assert type(result).from_json(stored.read_bytes(Artifact.GATE)).builds == result.builds
    assert stored.info.metrics["gate", "outside"] == 2 and Artifact.GATE_TABLE in stored.manifest


def test_builds_without_fault_are_accepted(heads, planted_builds, tracker) -> None:
    result = gate_all((heads,), replace(planted_builds(()), register=True), tracker=tracker)

    assert result.decision == "accept" and result.candidate_builds == 20 and result.version
    assert "0 of 20 are outside the limits: at least 86 % of all builds are within, confidence 95 %" in result.page()
    assert len({build.tactics_sha256 for build in result.builds}) == 1
    assert resolve(heads, tracker=tracker, name="quantized heads").run_id == result.holder


@pytest.mark.parametrize(("largest", "decision"), [(15, "accept"), (30, "refuse")])
def test_size_limit_counts_from_largest_accepted_build(
    largest: int, decision: str, heads, planted_builds, tracker, monkeypatch
) -> None:
    config = replace(planted_builds(()), policy=Policy(limits=Limits(accuracy=None, latency=LatencyLimit(ratio=99.0))))
    plain, sizes = distribution.gate, itertools.chain([10, 10, 10, 14, 10, 10], itertools.cycle([10, largest]))

    def gate_one(model: Path, config: GateConfig, **logged: object) -> GateResult:
        gate_result = plain(model, config, **logged)
        assert gate_result.measured is not None
        sized = [replace(gate_result.measured.candidate, engine_bytes=count << 20) for count in (next(sizes), 10)]
        measured = replace(gate_result.measured, candidate=sized[0], accepted=sized[1])
        return replace(gate_result, measured=measured, findings=evaluate_measured(measured, config.policy))

    monkeypatch.setattr(distribution, "gate", gate_one)
    # The accepted build of median latency is the reference. Without latencies that is any of the five.
    latency = property(lambda gate_result: SimpleNamespace(ratio=gate_result.measured.candidate.engine_bytes))
    monkeypatch.setattr(GateResult, "ratio", latency)
    result = gate_all((heads,), config, tracker=tracker)

    assert result.decision == decision
    assert [build.outside for build in result.builds if build.of == "accepted"] == ["", "", "size", "", ""]


def test_share_stays_open_without_time(heads, accepted, tracker) -> None:
    result = gate_all((heads,), trial(distribution=BuildShare(builds=2), minutes=0.001), tracker=tracker)

    assert result.decision not in ("accept", "refuse") and result.candidate_builds == 0
    assert "22.3 % are required. Raise --builds or --minutes" in result.reasons[0]
    with pytest.raises(errors.ConfigError, match="candidate is one engine"):
        gate_all((heads,), trial(distribution=BuildShare(builds=2), candidate=result.run_id), tracker=tracker)


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """A clock of the gate, its workers and its engines that tests move forward."""
    clock = SimpleNamespace(late=0.0)
    moved = SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() + clock.late})
    for module in (measurement, engine_process, worker):
        monkeypatch.setattr(module, "time", moved)
    return clock


STEPS = {
    "build": (IsolatedBackend, "build"),
    "reference": (Measurement, "_reference_outputs"),
    "self-check": (relations.Trials, "infer"),
    "latency": (EngineProcess, "visit"),
}


@pytest.mark.parametrize("subject", STEPS)
def test_step_that_outlasts_the_budget_is_undecided(subject, heads, accepted, tracker, clock, monkeypatch) -> None:
    """Whatever runs when the budget ends: no engine is blamed for that, and nothing further starts."""
    owner, name = STEPS[subject]
    step, calls = getattr(owner, name), []

    def outlast(self: object, *args: object, **named: object) -> object:
        calls.append(name)
        clock.late += 1000
        return step(self, *args, **named)

    monkeypatch.setattr(owner, name, outlast)
    slower = replace(FP32, options=replace(FP32.options, intra_op_threads=2))  # so that it is timed
    result = gate(heads, trial(accepted=accepted.holder, build=slower, policy=Policy()), tracker=tracker)

    assert result.decision == "undecided" and result.exit_code == 4, result.page()
    assert [f.subject for f in result.findings if f.outcome == "open"] == [subject]
    assert "raise --minutes" in result.reasons[0] and "WorkerError" not in result.page()
    assert len(calls) <= 2 and not [f for f in result.findings if f.subject == "accepted" and f.outcome == "note"]


def test_gate_may_require_an_accepted_engine(folder, tracker, monkeypatch) -> None:
    path = gates.write(gates.convolutions(8, 8, 1), folder, "new model")

    refused = gate(path, trial(require_accepted=True, register=True), tracker=tracker)
    several = gate_all(
        (path,), trial(require_accepted=True, distribution=BuildShare(builds=2), minutes=60.0), tracker=tracker
    )

    assert refused_for(refused) == refused_for(several) == {"accepted"} and several.candidate_builds == 0
    assert "no accepted FP32 engine of 'new model'" in refused.reasons[0] and not refused.holder
    assert gate(path, trial(), tracker=tracker).decision == "accept"


def test_other_settings_and_denied_ones_are_named(again) -> None:
    denied = "NchwcTransformer=on is denied by run ab12 at atol 1e-12 (`trtops runs pardon` with this run allows it)"
    slower = replace(again.measured.rounds, starts={"wall": ((0.5, 0.5),) * 6})
    differences = ("NchwcTransformer is off, on in the accepted engine",)
    measured = replace(
        again.measured,
        evaluation=again.measured.evaluation.leaving_out((denied,)),
        differences=differences,
        rounds=slower,
    )

    findings = {finding.subject: finding for finding in evaluate_measured(measured, Policy())}

    assert findings["deny-list"].text == f"1 choice left out: {denied}"
    assert (findings["settings"].outcome, findings["settings"].text) == ("note", differences[0])
    assert findings["latency"].outcome == "refuse"
    assert findings["latency"].text.endswith(f". Possible causes: {differences[0]}; {denied}")
    assert "settings" not in {finding.subject for finding in again.findings}


def test_differing_choices_are_named_by_their_values() -> None:
    machine = {"mechanism": "onnxruntime", "backend_version": "1", "device_sha256": "d"}
    choice_one, choice_two, relu = (
        TacticChoice(layer=layer, op="Conv", tactic=layer) for layer in ("one", "two", "relu")
    )
    usual = TacticRecord(**machine, settings=(("NchwcTransformer", "on"),), choices=(choice_one, relu))
    # What was tried and kept at its default is recorded or not, as time allowed.
    tried = TacticRecord(**machine, settings=(("ConvActivationFusion", "on"),), choices=(choice_one, relu))
    other = TacticRecord(**machine, settings=(("NchwcTransformer", "off"),), choices=(choice_one, choice_two))

    assert differing_choices(usual, tried) == ()
    assert differing_choices(other, usual) == (
        "NchwcTransformer is off, on in the accepted engine",
        "2 of 2 layers have other tactics",
    )


def test_settings_at_their_defaults_make_no_other_engine(accepted, heads, tracker) -> None:
    stored = builds.load_build(tracker.load(accepted.run_id))
    tried = replace(stored.tactics, settings=(("MatMulAddFusion", "on"),))
    same = gates.kept(tracker, heads, replace(stored, tactics=tried))

    result = gate(heads, trial(candidate=same, accepted=accepted.run_id, policy=Policy()), tracker=tracker)

    assert result.decision == "accept" and result.measured.same_engine and result.measured.rounds is None


@pytest.mark.usefixtures("children")
def test_budget_that_ends_before_the_accepted_engine_is_open(heads, accepted, tracker, monkeypatch) -> None:
    open_accepted = Measurement._open_accepted

    def late(self: Measurement, *args: object) -> object:
        self._end -= 1000
        return open_accepted(self, *args)

    monkeypatch.setattr(Measurement, "_open_accepted", late)
    result = gate(heads, trial(), tracker=tracker)

    assert result.decision == "undecided" and not refused_for(result)
    assert any("raise --minutes" in reason for reason in result.reasons)


def test_release_is_not_blamed_for_one_slow_build(again, tracker, monkeypatch) -> None:
    monkeypatch.setattr(across_releases, "gate", Mock(return_value=again))  # the next build is accepted
    slow = replace(again, findings=(Finding("latency", "refuse", "1.3 times"),))
    config = trial(accepted=again.run_id)
    regression = explain("heads", Path("heads.onnx"), config, slow, ("older.txt", "newest.txt"), {"tracker": tracker})

    assert regression.first_bad_version.startswith("none; another build with newest (onnxruntime 1.")
    assert regression.what_broke == "latency: 1.3 times" and across_releases.gate.call_count == 1


WITHOUT_TANH = """
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented
session, ort.__version__ = ort.InferenceSession, "99.1"
def create(source, *args, **options):
    data = source if isinstance(source, bytes) else open(source, "rb").read()
    if b"Tanh" in data and b"Cast" in data:
        raise NotImplemented("no kernel for Tanh")
    return session(source, *args, **options)
ort.InferenceSession = create
"""
"""Makes a release that refuses Tanh in models with casts, and so FP16 builds with it."""


def test_later_release_that_breaks_is_explained(folder, monkeypatch) -> None:
    monkeypatch.setenv("TRTOPS_HOME", str(folder / "tanh_home"))
    tracker, half = MemoryTracker(), replace(FP32, precision="fp16")
    text = "(float[2,8] x) => (float[2,8] y) { [a] a = MatMul(x, w) [b] b = Tanh(a) [c] y = Relu(b) }"
    path = gates.write(models.model(text, {"w": models.random(8, 8, seed=1, scale=0.3)}), folder, "tanh")
    config = trial(build=half, check=replace(GateConfig().check, self_check=False), register=True, minutes=60.0)
    accepted = gate(path, config, tracker=tracker)
    older, bad = gates.existing_release(folder, "older"), gates.existing_release(folder, "bad", WITHOUT_TANH)
    newest = gates.existing_release(folder, "newest", WITHOUT_TANH.replace("99.1", "99.2"))

    result = gate_all((), replace(config, register=False), releases=(older, bad, newest), tracker=tracker)

    assert accepted.decision == "accept" and result.verdict == "bad"
    assert [(cell.release, cell.decision) for cell in result.cells] == [("newest", "refuse")]
    [regression] = result.regressions
    assert regression.engine == "tanh version 1, fp16" and "no kernel for Tanh" in regression.what_broke
    assert regression.first_bad_version.startswith("bad (onnxruntime 99.1); accept with older (onnxruntime 1.")
    assert regression.smallest_model.startswith("1 of 3 nodes (Tanh 'b')")
    assert regression.workaround == "build in FP32"
    page = result.page()
    for answer in ("what broke: ", "first bad version: bad", "smallest model: 1 of 3", "workaround: build in FP32"):
        assert f"- {answer}" in page
    assert tracker.find(parent=result.run_id, tags={Tag.KIND: "reduce"})

    gone = gate_all((), config, releases=("/no/such/place.txt",), tracker=tracker)
    assert not gone.regressions and "/no/such/place.txt" in gone.cells[0].reasons[0]
    assert resolve(path, tracker=tracker).run_id == accepted.run_id
    (folder / "tanh.onnx").rename(folder / "moved.onnx")
    [lost] = gate_all((), config, releases=(older,), tracker=tracker).cells
    assert (lost.decision, lost.subject) == ("error", "tanh version 1")
    assert gate_all((), config, releases=(older,), tracker=MemoryTracker()).headline == "no candidates"


def test_engines_process_checks_the_feed() -> None:
    # TensorRT 8.6 has no INT64: its runner, in the process, converts what a model's INT64 inputs are fed.
    process = Mock()
    process.inputs.return_value = TensorMetadata().add("ids", DataType.INT32, (2,))
    process.infer.side_effect = lambda feed: {"y": feed["ids"]}
    with ProcessRunner(process) as runner:
        assert runner.infer({"ids": np.arange(2)})["y"].dtype == np.int64
