"""Listing, comparing and re-evaluating stored runs."""

import io

import pandas as pd
import pytest

from tests import models
from trtops import errors
from trtops.comparator.report import Tolerances
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.stored_runs import list_runs, reevaluate, runs_csv, side_by_side
from trtops.spec import BuildConfig
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker

QUICK = CheckConfig(latency_runs=1, warm_up=0, plots="never")


@pytest.fixture(scope="module")
def built(tracker: MemoryTracker, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Runs of a good FP32 build, and of one that no tolerance lets pass."""
    path = models.conv_net().fixed().write(tmp_path_factory.mktemp("model"), "conv")
    strict = CheckConfig(latency_runs=1, warm_up=0, plots="never", tolerances=Tolerances(atol=0, rtol=0))
    fine = convert(path, ConvertConfig(check=QUICK), tracker=tracker)
    poor = convert(path, ConvertConfig(build=BuildConfig(precision="fp16"), check=strict), tracker=tracker)
    return fine.run_id, poor.run_id


def test_runs_are_filtered_newest_first(tracker: MemoryTracker, built: tuple[str, str]) -> None:
    good, bad = built

    assert [row.id for row in list_runs(tracker)] == [bad, good]
    assert [row.id for row in list_runs(tracker, verdict="good", kind="build")] == [good]
    assert [row.id for row in list_runs(tracker, limit=1)] == [bad]
    assert list_runs(tracker, parent=good) == []
    with pytest.raises(errors.RunNotFoundError, match=r"no runs in experiment 'con'\. Did you mean 'conv'"):
        list_runs(tracker, experiment="con")
    row = list_runs(tracker, tags={schema.Tag.VERDICT: "bad"})[0]
    assert (row.experiment, row.kind, row.status, row.verdict) == ("conv", "build", "finished", "bad")


def test_csv_has_a_column_for_each_metric(tracker: MemoryTracker, built: tuple[str, str]) -> None:
    table = pd.read_csv(io.StringIO(runs_csv(tracker)), index_col="run_id")
    assert list(table.index) == [*reversed(built)] and table["metrics.error/max_abs"][built[1]] > 0
    assert list(pd.read_csv(io.StringIO(runs_csv(tracker, verdict="good")))["run_id"]) == [built[0]]
    hostile = MemoryTracker()
    run = hostile.start("e", "=HYPERLINK(1)", kind="build")
    run.log_params({"sum": "+1+1", "number": "-1.5e-3"})
    table = pd.read_csv(io.StringIO(runs_csv(hostile)), index_col="run_id")
    assert dict(table.loc[run.id, ["name", "params.sum"]]) == {"name": "'=HYPERLINK(1)", "params.sum": "'+1+1"}
    assert table.loc[run.id, "params.number"] == -1.5e-3


def test_params_and_metrics_are_compared(tracker: MemoryTracker, built: tuple[str, str]) -> None:
    lines = {line.name: line for line in side_by_side(built, tracker)}

    precision = next(line for name, line in lines.items() if name.endswith("precision"))
    assert (precision.kind, precision.values) == ("param", ("fp32", "fp16"))
    assert lines["build/engine_bytes"].kind == "metric"
    assert side_by_side([built[0], built[0]], tracker) == []
    with pytest.raises(errors.RunNotFoundError):
        side_by_side(["0" * 32], tracker)


def test_reevaluation_leaves_the_store_unchanged(tracker: MemoryTracker, built: tuple[str, str]) -> None:
    good, bad = built

    strict = reevaluate([good, bad], Tolerances(atol=0, rtol=0), tracker)
    loose = reevaluate([bad], Tolerances(atol=1, rtol=1), tracker)

    assert [(evaluation.before, evaluation.verdict) for evaluation in loose] == [("bad", "good")] and loose[
        0
    ].reasons == ()
    assert strict[1].verdict == "bad" and strict[1].reasons
    assert tracker.info(bad).verdict == "bad"
    with pytest.raises(errors.RunNotFoundError):
        reevaluate(["0" * 32], Tolerances(), tracker)
    bare = tracker.start("another", "without a comparison", kind="build")
    bare.finish("good")
    with pytest.raises(errors.IncompleteRunError):
        reevaluate([bare.id], Tolerances(), tracker)
