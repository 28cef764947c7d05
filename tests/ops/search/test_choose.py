"""Choose: limits decide, what cannot win is not built, and an interrupted choice resumes."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import trtops
from tests import models
from trtops import choose, choose_all, errors
from trtops.backend.onnxrt.measure import Lane
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.search.choose import ChooseConfig
from trtops.spec import OnnxRuntimeOptions
from trtops.tracking.memory import MemoryTracker

QUICK = CheckConfig(latency_runs=5, warm_up=1)


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Each engine is ONNX Runtime's default one, without the time that its builder takes to try settings.
    monkeypatch.setattr("trtops.ops.search.choose.OnnxRuntimeOptions", partial(OnnxRuntimeOptions, tactics=()))
    case = models.conv_net()
    np.savez(tmp_path / "data.npz", **case.feed)  # type: ignore[arg-type]
    return case.write(tmp_path)


@pytest.fixture
def config(tmp_path: Path) -> ChooseConfig:
    return ChooseConfig(check=replace(QUICK, data=str(tmp_path / "data.npz")), on=("cpu",))


def test_choice_is_recorded_with_a_child_per_candidate(net: Path, config: ChooseConfig) -> None:
    tracker = MemoryTracker()
    result = choose(net, config, tracker=tracker)

    by_label = {candidate.label: candidate for candidate in result.candidates}
    assert result.verdict == "good" and result.chosen is not None and result.chosen.outcome == "within"
    assert by_label["FP16 cpu"].outcome == "refused" and not by_label["FP16 cpu"].run_id
    chosen, *others = [c.p50_ms for c in result.candidates if c.outcome == "within"]
    assert result.chosen.p50_ms == chosen and others == sorted(others)
    children = {run.id for run in tracker.find(parent=result.run_id) if run.kind == "build"}
    assert children == {candidate.run_id for candidate in result.candidates if candidate.run_id}
    run = tracker.load(result.run_id)
    assert b'<polyline class="frontier"' in run.read_bytes("report/report.html") and run.info.verdict == "good"
    assert len(result.overview().rows) <= 10 and str(result.next_step).endswith(result.chosen.run_id)
    # The model is in the parent's run, for all candidates, and for builds that reuse their engines.
    again = convert(net, ConvertConfig(build=result.chosen.build, check=config.check), tracker=tracker)
    assert again.reused_from in children
    audited = audit(AuditConfig(runs=(result.chosen.run_id, again.run_id, result.run_id)), tracker=tracker).runs
    chosen, reusing, parent = audited
    assert not chosen.missing and "cannot be rebuilt" not in (chosen.grade, reusing.grade)
    assert not chosen.contradictions and not parent.contradictions


def test_simpler_engine_is_chosen_unless_another_is_faster(net: Path, config: ChooseConfig, monkeypatch) -> None:
    tracker, run = MemoryTracker(), None
    for seconds, chosen in ((0.99, "FP32 cpu"), (0.9, "FP32 cpu, 1 thread")):

        def visit(lane: Lane, feed: object, seconds: float = seconds) -> None:
            lane.samples.append(seconds if lane.candidate == "FP32 cpu, 1 thread" else 1.0)  # type: ignore[comparison-overlap]

        monkeypatch.setattr(Lane, "visit", visit)
        result = choose(net, config, precisions=("fp32",), resume=run, tracker=tracker)
        assert result.headline == chosen == result.candidates[0].label
        assert result.tie.startswith("FP32 cpu, 1 thread is not faster") == (seconds == 0.99)
        run = result.run_id


def test_limits_exclude_candidates(net: Path, config: ChooseConfig) -> None:
    exact = choose(net, config, loss="0.001%", tracker=MemoryTracker())
    outcomes = {candidate.label: candidate.outcome for candidate in exact.candidates}
    assert outcomes["FP32 cpu"] == "within" and outcomes["INT8 cpu"] == "beyond"
    assert exact.chosen is not None and exact.chosen.build.precision == "fp32"

    fast = choose(net, config, latency="1us", precisions=("fp32",), tracker=MemoryTracker())
    assert fast.verdict == "bad" and fast.chosen is None and "at most 0.001 ms" in fast.reasons[0]


def test_interrupted_choice_resumes(net: Path, config: ChooseConfig, monkeypatch) -> None:
    tracker, built = MemoryTracker(), []

    def interrupt(precision: str, **resume: str) -> str:
        def interrupted(path, conversion, **options):
            if conversion.build.precision == precision:
                raise KeyboardInterrupt
            return convert(path, conversion, **options)

        monkeypatch.setattr("trtops.ops.search.choose.convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            choose(net, config, tracker=tracker, **resume)
        return next(info.id for info in tracker.find() if info.kind == "choose")

    run = interrupt("int8", resume=interrupt("fp32"))  # the first one before it had a candidate

    def recorded(path, conversion, **options):
        built.append(conversion.build)
        return convert(path, conversion, **options)

    monkeypatch.setattr("trtops.ops.search.choose.convert", recorded)
    result = choose(net, config, resume=run, tracker=tracker)
    assert result.verdict == "good" and built[0].precision == "int8"
    assert json.loads(tracker.load(result.run_id).read_bytes("choose/result.json"))["chosen"] is not None
    with pytest.raises(errors.ConfigError, match="holds no candidates"):
        choose(net, config, resume=result.chosen.run_id, tracker=tracker)
    with pytest.raises(errors.ConfigError, match="started with another data, so"):
        choose(net, config, resume=result.run_id, data=None, tracker=tracker)


def test_candidates_without_time_are_counted(net: Path, config: ChooseConfig) -> None:
    result = choose(net, config, minutes=0, precisions=("fp32", "int8"), tracker=MemoryTracker())
    assert result.verdict == "good" and result.headline == "FP32 cpu"
    assert result.because[1].startswith("no time was left for 3 candidates")


def test_loss_of_a_metric_decides(net: Path, config: ChooseConfig, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def first(outputs, labels):\n    return [y.flat[0] for y in outputs['scores']]\n")
    np.save(tmp_path / "labels.npy", np.zeros(len(np.load(tmp_path / "data.npz")["image"])))
    metric = {"metric": f"{tmp_path}/own.py:first", "labels": str(tmp_path / "labels.npy")}
    result = choose(net, config, loss="0.00001%", precisions=("fp32", "int8"), tracker=MemoryTracker(), **metric)

    tracker = MemoryTracker()
    for mistake in ({**metric, "metric": "top11"}, {**metric, "labels": "missing.npy"}, {"metric": "top1"}):
        with pytest.raises(errors.ConfigError, match=r"top1|missing\.npy"):
            choose(net, config, tracker=tracker, **mistake)
    np.save(tmp_path / "long.npy", np.zeros(99))
    wrong = {**metric, "labels": str(tmp_path / "long.npy"), "data": config.check.data}
    for verb in trtops.choose, trtops.convert:
        with pytest.raises(errors.ComparisonError, match="samples, and there are 99 labels"):
            verb(net, tracker=tracker, **wrong)
    assert not tracker.find()  # nothing was built

    losses = {c.label: c.loss for c in result.candidates}
    (tmp_path / "own.py").write_text("def first(outputs, labels):\n    raise RuntimeError('no table')\n")
    with pytest.raises(errors.ScriptError, match=r'own.py", line 2(?s:.*)RuntimeError: no table'):
        choose_all([net, net], config, precisions=("fp32",), tracker=MemoryTracker(), **metric)
    assert result.by_metric and losses["FP32 cpu"] == pytest.approx(0, abs=1e-7) and abs(losses["INT8 cpu"]) > 1e-5


def test_list_survives_a_broken_model(net: Path, config: ChooseConfig, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    result = choose_all([str(tmp_path / "*.onnx")], config, precisions=("fp32",), tracker=MemoryTracker())

    assert result.verdict == "error" and [
        row[1] != "no engine is within the limits" for row in result.overview().rows
    ] == [False, True]


@pytest.mark.parametrize(("option", "message"), [({"loss": "1"}, "such as 0.5"), ({"latency": "2"}, "such as 2ms")])
def test_limits_need_units(option: dict[str, str], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        ChooseConfig(**option)
