"""Coverage and power in the results of every op that compares an engine with its model."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import models, zoo
from trtops import errors
from trtops.comparator.results import RunResults
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.comparing.compare import compare
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.data import golden_outputs
from trtops.ops.evaluation.power import Power
from trtops.ops.gate.op import gate
from trtops.ops.gate.policy import GateConfig, Limits, Policy
from trtops.ops.registry.promote import PromoteConfig, promote
from trtops.ops.search.command import CommandCheck
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking import schema
from trtops.tracking.base import RunInfo
from trtops.tracking.memory import MemoryTracker

BUILD = BuildConfig(options=OnnxRuntimeOptions(tactics=(), intra_op_threads=1))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.conv_net().write(tmp_path, "conv")


@pytest.fixture
def check(tmp_path: Path) -> CheckConfig:
    np.savez(tmp_path / "feed.npz", **{name: np.abs(array) for name, array in models.conv_net().feed.items()})
    return CheckConfig(data=str(tmp_path / "feed.npz"), latency_runs=0, plots="never", power=True)


@pytest.fixture
def tracker() -> MemoryTracker:
    return MemoryTracker()


def stored(tracker: MemoryTracker, run_id: str) -> Evaluation:
    return Evaluation.from_json(tracker.load(run_id).read_bytes(schema.Artifact.ACCURACY))


def measured(evaluation: Evaluation) -> Power:
    assert "blind to negative values of `image`" in evaluation.blind
    assert evaluation.power is not None and evaluation.power.share is not None
    return evaluation.power


def test_convert_logs_power_only_if_requested(model: Path, check: CheckConfig, tracker: MemoryTracker) -> None:
    result = convert(model, ConvertConfig(build=BUILD, check=check), tracker=tracker)
    power = measured(result.evaluation)
    metrics = tracker.load(result.run_id).info.metrics
    assert metrics["power", "seen"] == power.share
    assert stored(tracker, result.run_id).power == power
    sections = "\n".join(section.text for section in result.sections())
    for text in ("\n".join(result.body()), sections):
        assert f"This check sees {power.caught} of {len(power.planted)} faults planted" in text
        assert "; blind to negative values of `image`" in text and "| zeroed channel |" in text

    plain = convert(model, ConvertConfig(build=BUILD, check=replace(check, power=False)), tracker=tracker)
    assert plain.evaluation.power is None and plain.verdict == result.verdict
    assert ("power", "seen") not in tracker.load(plain.run_id).info.metrics
    assert "blind to negative values of `image`; one feed: a stale output cannot be seen" in "\n".join(plain.body())


def test_comparisons_of_engines_have_power(model: Path, check: CheckConfig, tracker: MemoryTracker) -> None:
    run_id = convert(model, ConvertConfig(build=BUILD, check=replace(check, power=False)), tracker=tracker).run_id
    for golden in (str(model), f"run:{run_id}"):
        power = measured(compare(f"run:{run_id}", golden, check, tracker=tracker).evaluation)
        assert 0 < power.caught <= len(power.planted)


def test_campaigns_and_promotions_measure_power(model: Path, check: CheckConfig, tracker: MemoryTracker) -> None:
    config = DebugBuildConfig(build=BUILD, check=check, random_tactics=True, until=2, max_iterations=2)
    campaign = debug_build(model, config, tracker=tracker)
    infos = tracker.find("conv", parent=campaign.run_id)
    powers = [measured(stored(tracker, info.id)) for info in infos if info.tags[schema.Tag.KIND] == "iteration"]
    assert len(powers) == 2 and powers[0] == powers[1]
    measured(promote(infos[0].id, PromoteConfig(check=check), tracker=tracker).evaluation)


def test_campaigns_check_engines_against_themselves(model: Path, check: CheckConfig, tracker: MemoryTracker) -> None:
    check_config = replace(check, power=False, self_check=True)
    config = DebugBuildConfig(build=BUILD, check=check_config, random_tactics=True, until=1, max_iterations=1)
    campaign = debug_build(model, config, tracker=tracker)
    [info] = tracker.find("conv", parent=campaign.run_id)
    self_check = stored(tracker, info.id).self_check
    assert self_check is not None and "repeated inference" in self_check.named("held") and not self_check.reasons


def test_gate_notes_power_and_coverage(model: Path, check: CheckConfig, tracker: MemoryTracker) -> None:
    config = GateConfig(build=BUILD, check=check, policy=Policy(limits=Limits(latency=None)), register=False)
    for gate_config, subject in ((config, "power"), (replace(config, check=replace(check, power=False)), "data")):
        result = gate(model, gate_config, tracker=tracker)
        [note] = [finding for finding in result.findings if finding.subject in ("power", "data")]
        assert (note.subject, note.outcome) == (subject, "note") and "negative values of `image`" in note.text
        assert note.text in result.page()
        assert stored(tracker, result.run_id).blind


def test_saved_golden_outputs_have_power(model: Path, check: CheckConfig, tracker: MemoryTracker) -> None:
    from trtops.backend.onnx.model import Model

    loaded = Model.load(model)
    golden: RunResults = golden_outputs(loaded, check.open_for(loaded), None)
    file = model.parent / "golden.json"
    golden.save(str(file))
    result = convert(model, ConvertConfig(build=BUILD, check=replace(check, golden=str(file))), tracker=tracker)
    assert measured(result.evaluation).share == 1


def only_build(model: Path, tracker: MemoryTracker, **config: object) -> RunInfo:
    """The run of a campaign's only build."""
    campaign = debug_build(model, DebugBuildConfig(until=1, **config), tracker=tracker)  # type: ignore[arg-type]
    [info] = tracker.find(parent=campaign.run_id, tags={schema.Tag.KIND: "iteration"})
    return info


def test_int8_spec_equals_convert_with_a_file(tmp_path: Path) -> None:
    case, tracker, specs = models.conv_net(), MemoryTracker(), set()
    model, check = case.write(tmp_path), CheckConfig(latency_runs=0, plots="never", iterations=3)
    for scale in (1.0, 3.0):
        data = str(tmp_path / f"{scale}.npz")
        np.savez(data, **{key: array * np.float32(scale) for key, array in case.feed.items()})
        config = {"build": BuildConfig(precision="int8"), "check": check, "calibration_data": data}
        converted = convert(model, ConvertConfig(**config), tracker=tracker)
        assert only_build(model, tracker, **config).fact(schema.Tag.SPEC_SHA256) == converted.spec_sha256
        specs.add(converted.spec_sha256)
    assert len(specs) == 2


def test_until_beyond_the_limit_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match=r"until is 400.*after 200 builds.*--max-builds 400"):
        DebugBuildConfig(until=400)
    assert DebugBuildConfig(until=400, max_iterations=400).limit == 400


@pytest.mark.parametrize("by_command", [False, True])
@pytest.mark.parametrize(("share", "verdict"), [(0.0, "good"), (0.5, "bad")])
def test_too_few_lowered_kernels_are_bad(share: float, verdict: str, by_command: bool, tmp_path: Path) -> None:
    """One build in FP16, which ONNX Runtime computes in FP32, is checked as convert does."""
    case, tracker = zoo.classifier(), MemoryTracker()
    np.savez(tmp_path / "feed.npz", **dict(case.feed))
    info = only_build(
        case.write(tmp_path),
        tracker,
        build=BuildConfig(precision="fp16"),
        check=CheckConfig(data=str(tmp_path / "feed.npz"), latency_runs=0, plots="never", min_precision_share=share),
        command=CommandCheck(command=(sys.executable, "-c", "pass", "{engine}")) if by_command else None,
    )

    assert (info.verdict, info.metrics[schema.Metric.KERNELS_LOWERED]) == (verdict, 0)
    assert info.tags.get(schema.Tag.BAD_IN) == ("precision" if verdict == "bad" else None)
    if by_command:
        assert ("No FP16 engine" in info.tags[schema.Tag.NOTE]) == (verdict == "bad")
        return
    stored = tracker.load(info.id)
    evaluated = Evaluation.from_json(stored.read_bytes(schema.Artifact.ACCURACY))
    assert evaluated.verdict == verdict
    assert evaluated.emulated is not None and evaluated.emulated.verdict == "good"
    assert ("at least 50% are required" in " ".join(evaluated.reasons)) == (verdict == "bad")
    assert schema.Artifact.PRECISIONS in stored.manifest
