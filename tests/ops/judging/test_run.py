"""Runners on the same inputs, judged against one another and against saved outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from trtops.comparator import AccuracyResults, CompareFunc, PostprocessFunc, RunResults
from trtops.ops.judging.run import RunConfig, run_models
from trtops.tracking.memory import MemoryTracker


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(models.conv_net().write(tmp_path, "conv"))


def runner(model: str, name: str) -> OnnxrtRunner:
    return OnnxrtRunner(SessionFromOnnx(model), name=name)


def outputs_of(path: Path, change: float = 0.0) -> RunResults:
    """Saved outputs with something added to each."""
    loaded = RunResults.load(path)
    for _, iterations in loaded:
        for iteration in iterations:
            for name in iteration:
                iteration[name] = iteration[name] + np.float32(change)
    loaded.save(path)
    return loaded


def test_runners_that_agree_are_good_and_what_they_said_is_kept(model: str, tmp_path: Path) -> None:
    config = RunConfig(
        warm_up=1,
        validate=True,
        save_inputs=str(tmp_path / "in.json"),
        save_outputs=str(tmp_path / "out.json"),
        save_accuracy=str(tmp_path / "accuracy.json"),
    )

    result = run_models([runner(model, "a"), runner(model, "b")], config, data_loader=[models.conv_net().feed] * 2)

    assert (result.verdict, result.reasons) == ("good", ())
    assert (result.runners, result.iterations) == (("a", "b"), (2, 2))
    assert all(ms is not None and ms > 0 for ms in result.mean_ms)
    assert list(RunResults.load(tmp_path / "out.json").keys()) == ["a", "b"]
    assert AccuracyResults.load(tmp_path / "accuracy.json").stats() == (2, 0, 2)


def test_saved_outputs_stand_behind_the_runners_and_a_difference_names_both_and_the_output(
    model: str, tmp_path: Path
) -> None:
    feed = [models.conv_net().feed]
    run_models([runner(model, "then")], RunConfig(save_outputs=str(tmp_path / "then.json")), data_loader=feed)
    changed = outputs_of(tmp_path / "then.json", change=0.5)
    output = next(iter(changed[0][1][0]))

    result = run_models(
        [runner(model, "now")], RunConfig(load_outputs=(str(tmp_path / "then.json"),)), data_loader=feed
    )

    assert result.runners == ("now", "then")
    assert result.reasons == (f"now and then differ in {output}.",)
    alone = run_models([], RunConfig(load_outputs=(str(tmp_path / "then.json"),) * 2))
    assert (alone.verdict, alone.runners) == ("good", ("then", "then"))


def test_all_compare_functions_must_agree_after_what_is_done_to_outputs(model: str, tmp_path: Path) -> None:
    feed = [models.conv_net().feed]
    saved = RunConfig(save_outputs=str(tmp_path / "then.json"))
    run_models([runner(model, "then")], saved, data_loader=feed)
    outputs_of(tmp_path / "then.json", change=0.5)
    both = RunConfig(load_outputs=(str(tmp_path / "then.json"),))

    loose = run_models([runner(model, "now")], both, data_loader=feed, compare=[CompareFunc.simple(atol=1)])
    one_of_two = run_models(
        [runner(model, "now")],
        both,
        data_loader=feed,
        compare=[CompareFunc.simple(atol=1), CompareFunc.l2(l2_threshold=0.1)],
    )
    ranked = run_models(
        [runner(model, "now")], both, data_loader=feed, postprocess=[PostprocessFunc.top_k(2)],
        compare=[CompareFunc.indices()],
    )  # fmt: skip

    assert (loose.verdict, one_of_two.verdict, ranked.verdict) == ("good", "bad", "good")


def test_nan_is_a_fault_if_it_is_looked_for(tmp_path: Path) -> None:
    path = models.identity().write(tmp_path, "identity")
    feed = {name: np.full_like(array, np.nan) for name, array in models.identity().feed.items()}
    runners = [OnnxrtRunner(SessionFromOnnx(str(path)))]

    checked = run_models(runners, RunConfig(validate=True), data_loader=[feed])

    assert checked.reasons == ("Outputs hold NaN or infinities.",)
    assert run_models(runners, data_loader=[feed]).verdict == "good"


def test_another_number_of_iterations_is_an_error(model: str, tmp_path: Path) -> None:
    feed = models.conv_net().feed
    run_models([runner(model, "then")], RunConfig(save_outputs=str(tmp_path / "then.json")), data_loader=[feed])
    config = RunConfig(load_outputs=(str(tmp_path / "then.json"),))

    with pytest.raises(errors.IterationMismatchError):
        run_models([runner(model, "now")], config, data_loader=[feed, feed])


def test_a_run_of_the_memory_gets_every_statistic_and_the_fields_own_results(model: str) -> None:
    tracker = MemoryTracker()
    run = tracker.start("conv", "run", kind="compare")
    result = run_models([runner(model, "a"), runner(model, "b")], data_loader=[models.conv_net().feed], run=run)
    run.finish(result.verdict)

    stored = tracker.load(result.run_id)
    assert any(name[0] == "error" and name[-1] == "max_abs" for name in stored.info.metrics)
    assert AccuracyResults.from_json(stored.read_bytes("accuracy/results.polygraphy.json")).percentage() == 1.0
