"""What MLflow's own pages and calls make of our runs: a status, a view, data sets, models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import mlflow
import numpy as np
import pytest

from tests.models import multi_output
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.tracking import builds
from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.views import VIEW_TAG
from trtops.tracking.registry import ACCEPTED
from trtops.tracking.schema import Tag


@pytest.fixture
def tracker(new_store: Callable[[Path], Path], tmp_path: Path) -> MlflowTracker:
    return MlflowTracker(new_store(tmp_path / "mlruns"))


def test_bad_run_is_shown_as_failed(tracker: MlflowTracker) -> None:
    for verdict in ("good", "bad"):
        with tracked(tracker, "m", verdict, kind="build") as run:
            run.finish(verdict)
    with pytest.raises(ValueError), tracked(tracker, "m", "failed", kind="build"):
        raise ValueError("no")

    shown = {run.info.run_name: run.info.status for run in tracker._client.search_runs(["1"])}
    assert shown == {"good": "FINISHED", "bad": "FAILED", "failed": "FAILED"}
    assert {info.name for info in tracker.find("m", status="finished")} == {"good", "bad"}
    assert [info.name for info in tracker.find("m", status="failed")] == ["failed"]


def test_experiment_view_is_not_overwritten(tracker: MlflowTracker) -> None:
    tracker.start("m", "first", kind="build").finish("good")
    experiment = tracker._client.get_experiment_by_name("m")
    assert json.loads(experiment.tags[VIEW_TAG])["state"].startswith("deflate;")
    assert "viewStateShareKey=trtops" in experiment.tags[Tag.NOTE]

    tracker._client.set_experiment_tag(experiment.experiment_id, Tag.NOTE, "ours")
    MlflowTracker(tracker.store).start("m", "second", kind="build").finish("good")
    assert tracker._client.get_experiment_by_name("m").tags[Tag.NOTE] == "ours"


def test_mlflow_loads_an_accepted_engine(
    tracker: MlflowTracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = multi_output()
    result = convert(case.write(tmp_path, "m"), ConvertConfig(check=CheckConfig(latency_runs=1)), tracker=tracker)
    stored = tracker.load(result.run_id)
    path = builds.engine_path(stored)
    tracker.register("m", result.run_id, path, alias="here")
    assert tracker.aliases("m") == {"here": "1"}
    found = tracker.registered("m", "here")
    assert found is not None and found.path == path and found.tags == {}

    [data] = tracker._client.get_run(result.run_id).inputs.dataset_inputs
    assert data.dataset.name == "random, seed 1"
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    (tmp_path / "fetched").mkdir()
    assert tracker.store is not None
    mlflow.set_registry_uri(tracker.store.uri)
    mlflow.set_tracking_uri(tracker.store.uri)
    try:
        model = mlflow.pyfunc.load_model(f"models:/m@{ACCEPTED}", dst_path=str(tmp_path / "fetched"))
    finally:
        mlflow.set_tracking_uri(None)
        mlflow.set_registry_uri(None)
    case.check(lambda feed: model.predict({name: np.asarray(array) for name, array in feed.items()}))
