"""A dynamic model without data and shapes is unproven, in Python, on the command line, in flows, gates and reports."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from trtops import errors
from trtops.cli.main import main
from trtops.comparator.report import Tolerances
from trtops.ops.auditing.integrity import SharedReads, check_integrity
from trtops.ops.bundling.op import BundleConfig, bundle
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.comparing.compare import compare
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.gate.matrix import gate_all
from trtops.ops.gate.op import gate
from trtops.ops.gate.policy import GateConfig, Limits, Policy
from trtops.ops.gate.result import GateResult
from trtops.ops.registry.accepted import resolve
from trtops.ops.registry.promote import promote
from trtops.ops.stored_runs import list_runs, reevaluate
from trtops.ops.triaging.op import triage
from trtops.ops.triaging.result import TriageConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact, Tag

BUILD = BuildConfig(options=OnnxRuntimeOptions(tactics=(), intra_op_threads=1))
RANDOM = CheckConfig(latency_runs=0, plots="never")
SHAPED = replace(RANDOM, input_shapes={"image": (2, 3, 8, 8)})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.conv_net().write(tmp_path_factory.mktemp("unproven"))


@pytest.fixture(scope="module")
def unproven(model: Path, tracker: MemoryTracker) -> ConvertResult:
    return convert(model, ConvertConfig(build=BUILD, check=RANDOM), tracker=tracker)


def test_result_and_run_say_what_is_missing(unproven: ConvertResult, tracker: MemoryTracker) -> None:
    info = tracker.info(unproven.run_id)

    assert unproven.verdict == info.verdict == "unproven"
    assert "assumed shapes (image 2x3x8x8)" in unproven.reasons[0] and "--load-inputs" in unproven.reasons[0]
    assert unproven.reasons[0] in info.tags[Tag.NOTE] and "runs promote" not in info.tags[Tag.NOTE]
    assert unproven.next_step is None and "with an array for 'image'" in unproven.needed
    assert unproven.needed in info.tags[Tag.NOTE]
    assert [row.id for row in list_runs(tracker, verdict="unproven", kind="build")] == [unproven.run_id]
    assert not check_integrity(tracker.load(unproven.run_id), SharedReads(tracker)).contradictions


def test_promotion_needs_shapes(unproven: ConvertResult, model: Path, tracker: MemoryTracker) -> None:
    with pytest.raises(errors.ConfigError, match=r"unproven.*--input-shapes.*`trtops convert`"):
        promote(unproven.run_id, tracker=tracker)
    assert resolve(model, tracker=tracker).run_id is None

    shaped = convert(model, ConvertConfig(build=BUILD, check=SHAPED), tracker=tracker)
    accepted = promote(shaped.run_id, tracker=tracker)

    assert (shaped.verdict, shaped.reused_from) == ("good", unproven.run_id)
    assert accepted.evaluation.verdict == "good" and resolve(model, tracker=tracker).run_id == accepted.run_id
    assert not check_integrity(tracker.load(accepted.run_id), SharedReads(tracker)).contradictions


def test_promotion_uses_the_data_of_the_run(model: Path, tmp_path: Path, tracker: MemoryTracker) -> None:
    data = tmp_path / "image.npy"
    models.np.save(data, models.conv_net().feed["image"])
    converted = convert(model, ConvertConfig(build=BUILD, check=replace(RANDOM, data=str(data))), tracker=tracker)
    data.unlink()

    accepted = promote(converted.run_id, tracker=tracker)

    evidence = accepted.evaluation.evidence
    first = converted.evaluation.evidence
    assert evidence is not None and first is not None and evidence.source == first.source
    assert [entry.shapes["image"] for entry in evidence.shapes] == [models.conv_net().feed["image"].shape]


def test_comparison_and_reevaluation_stay_unproven(
    unproven: ConvertResult, model: Path, tracker: MemoryTracker
) -> None:
    comparison = compare(f"run:{unproven.run_id}", model, RANDOM, tracker=tracker)
    assert comparison.verdict == "unproven" and comparison.reasons == unproven.reasons

    loose, strict = (reevaluate([unproven.run_id], Tolerances(atol=atol, rtol=0), tracker)[0] for atol in (1.0, 0.0))
    assert (loose.verdict, loose.reasons, strict.verdict) == ("unproven", unproven.reasons, "bad")


def test_gate_accepts_unproven_only_by_option(model: Path, tracker: MemoryTracker) -> None:
    config = GateConfig(build=BUILD, policy=Policy(limits=Limits(latency=None)), name="gated", keep_model=False)
    with_shapes = replace(config, check=replace(config.check, input_shapes=SHAPED.input_shapes))

    undecided = gate(model, config, tracker=tracker)
    matrix = gate_all([model], replace(config, register=False), tracker=tracker)
    accepted = gate(model, replace(config, accept_unproven=True), tracker=tracker)
    shaped = gate(model, with_shapes, tracker=tracker)

    assert (undecided.decision, undecided.verdict, undecided.version) == ("undecided", "unproven", "")
    assert undecided.headline == "undecided because of evidence" and undecided.exit_code == 4
    assert "--accept-unproven" in undecided.reasons[0]
    assert matrix.verdict == "unproven" and matrix.exit_code == 4
    assert (accepted.decision, accepted.verdict, accepted.version) == ("accept", "good", "1")
    assert "accepted by --accept-unproven" in accepted.page()
    assert (shaped.verdict, shaped.version) == ("good", "2") and "image 2x3x8x8" in shaped.evidence
    for result in (undecided, accepted):
        stored = tracker.load(result.run_id)
        assert (
            stored.info.verdict == result.verdict and not check_integrity(stored, SharedReads(tracker)).contradictions
        )
        assert GateResult.from_json(stored.read_bytes(Artifact.GATE)).verdict == result.verdict


def test_triage_does_not_rule_out_a_bad_engine(model: Path, tracker: MemoryTracker) -> None:
    triaged = triage(model, TriageConfig(build=BUILD, check=RANDOM), tracker=tracker)
    shaped = triage(model, TriageConfig(build=BUILD, check=SHAPED), tracker=tracker)

    assert (triaged.verdict, triaged.kind, triaged.steps[-1].answer) == ("unproven", "none", "unproven")
    assert "--input-shapes" in triaged.remedies[-1] and "proves nothing" in triaged.headline
    assert tracker.info(triaged.run_id).verdict == tracker.info(triaged.steps[-1].run_id).verdict == "unproven"
    assert (shaped.verdict, shaped.headline) == ("good", "nothing is wrong")


def test_campaign_of_unproven_builds_is_unproven(model: Path, tracker: MemoryTracker) -> None:
    config = DebugBuildConfig(build=BUILD, check=RANDOM, until=2, max_iterations=2, keep_model=False)

    campaign = debug_build(model, config, tracker=tracker)
    first = debug_build(model, replace(config, until="good"), tracker=tracker)

    assert (campaign.verdict, campaign.good, campaign.unproven, campaign.diff.good) == ("unproven", 0, 2, 2)
    assert "2 unproven (they count as good here)" in campaign.page()
    assert (first.verdict, first.iterations) == ("unproven", 1)  # it stops at a build without a deviation
    iteration = tracker.find(parent=campaign.run_id, tags={Tag.KIND: "iteration"})[0]
    for run in (campaign.run_id, iteration.id):
        assert not check_integrity(tracker.load(run), SharedReads(tracker)).contradictions
    with pytest.raises(errors.ConfigError, match="`trtops debug build`"):
        promote(iteration.id, tracker=tracker)


def test_bundle_repeats_the_comparison(unproven: ConvertResult, tmp_path: Path, tracker: MemoryTracker) -> None:
    bundled = bundle(unproven.run_id, BundleConfig(output=str(tmp_path / "case.zip")), tracker=tracker)
    assert bundled.repeats == "good" and "verdict: good" in bundled.printed


@pytest.fixture
def run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str]]:
    """Runs a line in the model's folder; gives the exit code and standard output."""
    monkeypatch.setenv("TRTOPS_HOME", str(tmp_path / "store"))
    monkeypatch.chdir(model.parent)

    def call(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(shlex.split(line))
        return code, capsys.readouterr().out

    return call


def test_exit_codes_and_texts(run: Callable[[str], tuple[int, str]], caplog: pytest.LogCaptureFixture) -> None:
    out = run("convert conv_net.onnx --convert-to ort --latency-runs 0")[1]
    assert "\nrun: " not in out and "next:" not in out  # nothing was stored
    code, out = run("convert conv_net.onnx --convert-to ort --experiment nets")
    assert code == 1 and "verdict: unproven\n" in out
    assert "needed:  data, given with --load-inputs" in " ".join(out.split()).replace("needed: ", "needed:  ")
    run_id = out.rpartition("run:")[2].split()[0]

    assert run("runs list --verdict unproven")[1].count("unproven") == 1
    assert "unproven" in run(f"runs show {run_id}")[1]
    code, _ = run(f"runs promote {run_id}")
    assert code == 3 and "is unproven" in caplog.text and "Repeat `trtops convert`" in caplog.text
    code, out = run("gate conv_net.onnx --onnxrt --experiment nets --no-register")
    assert code == 4 and "verdict: unproven (undecided because of evidence)" in out

    code, out = run("convert conv_net.onnx --convert-to ort --experiment nets --input-shapes image:[2,3,8,8]")
    assert code == 0 and "verdict: good\n" in out and "next:    trtops runs promote" in out
