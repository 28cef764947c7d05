"""Runners on the same inputs, evaluated against one another and against saved outputs."""

import math
from pathlib import Path

import numpy as np
import pytest

from tests import models
from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from trtops.comparator import AccuracyResults, CompareFunc, PostprocessFunc, RunResults
from trtops.ops.evaluation.check import Evaluation
from trtops.ops.evaluation.run import RunConfig, run_models
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact, Tag


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(models.conv_net().write(tmp_path, "conv"))


def runner(model: str, name: str) -> OnnxrtRunner:
    return OnnxrtRunner(SessionFromOnnx(model), name=name)


FEED = [models.conv_net().feed]


@pytest.fixture
def saved(model: str, tmp_path: Path) -> str:
    """Saved outputs with something added to each."""
    path = str(tmp_path / "then.json")
    run_models([runner(model, "then")], RunConfig(save_outputs=path), data_loader=FEED)
    loaded = RunResults.load(path)
    for iteration in loaded["then"]:
        for name in iteration:
            iteration[name] = iteration[name] + np.float32(0.5)
    loaded.save(path)
    return path


def test_saved_outputs_are_compared_after_runners(model: str, saved: str) -> None:
    output, both = next(iter(RunResults.load(saved)["then"][0])), RunConfig(load_outputs=(saved,))
    result = run_models([runner(model, "now")], both, data_loader=FEED)
    assert result.runners == ("now", "then")
    assert result.reasons == (f"now and then differ in {output}.",)
    alone = run_models([], RunConfig(load_outputs=(saved, saved)))
    assert (alone.verdict, alone.runners) == ("good", ("then", "then"))
    ranked = {"postprocess": [PostprocessFunc.top_k(2)], "compare": [CompareFunc.indices()]}
    assert run_models([runner(model, "now")], both, data_loader=FEED, **ranked).verdict == "good"


def test_validation_finds_nan(tmp_path: Path) -> None:
    path = models.identity().write(tmp_path, "identity")
    feed = {name: np.full_like(array, np.nan) for name, array in models.identity().feed.items()}
    runners = [runner(str(path), "a")]
    checked = run_models(runners, RunConfig(validate=True), data_loader=[feed])
    assert checked.reasons == ("Outputs hold NaN or infinities.",)
    assert run_models(runners, data_loader=[feed]).verdict == "good"


def test_run_logs_statistics_and_polygraphy_results(model: str) -> None:
    tracker = MemoryTracker()
    runners = [runner(model, "a"), runner(model, "b")]
    result = run_models(runners, data_loader=FEED, model=model, tracker=tracker, tags={"who": "me"}, params={"n": 1})
    stored = tracker.load(result.run_id)
    assert (stored.info.experiment, stored.info.name, stored.info.verdict) == ("conv", "run conv.onnx", "good")
    assert stored.info.tags["who"] == "me" and stored.info.params["n"] == "1"
    assert stored.info.params["run.warm_up"] == "0"
    assert any(name[0] == "error" and name[-1] == "max_abs" for name in stored.info.metrics)
    assert AccuracyResults.from_json(stored.read_bytes("accuracy/results.polygraphy.json")).percentage() == 1.0


@pytest.mark.parametrize(
    ("compare", "check_average", "verdict", "limits"),
    [
        ([CompareFunc.simple(atol=1.0)], False, "good", {"atol": 1.0, "rtol": 1e-5}),
        ([CompareFunc.simple(atol=0.1, check_error_stat="max")], False, "bad", {"check_error_stat": "max"}),
        ([CompareFunc.simple(atol=0.1, check_error_stat="max")], True, "bad", {"check_error_stat": "max"}),
        ([CompareFunc.l2(l2_threshold=0.1)], False, "bad", {"max_l2": 0.1, "atol": math.inf}),
        ([CompareFunc.simple(atol=1.0), CompareFunc.cosine_similarity(1.1)], False, "bad", {"min_cosine": 1.1}),
        ([CompareFunc.kl(kl_threshold=-1.0)], False, "bad", {"max_kl": -1.0, "atol": math.inf}),
        ([CompareFunc.indices(index_tolerance=0)], False, "bad", {"atol": math.inf}),
        ([lambda a, b: dict.fromkeys(a, True)], False, "good", {"atol": math.inf}),
    ],
)
def test_report_has_verdicts_of_compare_functions(
    model: str, saved: str, compare, check_average: bool, verdict: str, limits: dict[str, object]
) -> None:
    tracker, config = MemoryTracker(), RunConfig(load_outputs=(saved,), check_average=check_average)
    result = run_models([runner(model, "now")], config, data_loader=FEED, compare=compare, tracker=tracker)
    stored = tracker.load(result.run_id)
    report = Evaluation.from_json(stored.read_bytes(Artifact.ACCURACY)).report
    assert result.verdict == stored.info.verdict == report.verdict == verdict
    assert stored.info.tags[Tag.NOTE].startswith(f"**{verdict}**")
    assert bool(report.reasons) == (verdict == "bad")
    kept = report.tolerances.of(report.outputs[0].name)
    assert {name: getattr(kept, name) for name in limits} == limits


def test_later_pairs_count(model: str, saved: str) -> None:
    tracker, runners = MemoryTracker(), [runner(model, "a"), runner(model, "b")]
    result = run_models(runners, RunConfig(load_outputs=(saved,)), data_loader=FEED, tracker=tracker)
    stored = tracker.load(result.run_id)
    note = stored.info.tags[Tag.NOTE]
    assert note.startswith("**bad** · run") and note.count("\n- b and then differ in") == 1
    assert Evaluation.from_json(stored.read_bytes(Artifact.ACCURACY)).report.verdict == "good"  # of the first pair
