"""The tracker in memory keeps the contract; tables of runs and in runs."""

import json
from pathlib import Path

import mlflow
import pandas as pd
import pytest

from tests.contracts.tracker import InMemoryContract
from trtops.tracking import schema
from trtops.tracking.base import tracked
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.records import Runs
from trtops.tracking.store import open_tracker

COLUMNS = ("tensor", "amax", "kept")
ROWS = [("gpu_0/softmax:1", 1.5, True), ("日本", 2.0, False)]


class TestMemoryTracker(InMemoryContract):
    @pytest.fixture
    def memory(self):
        return MemoryTracker()

    @pytest.fixture
    def tracker(self, memory):
        return memory


def test_tables_equal_mlflow_tables(tmp_path: Path) -> None:
    tracker = open_tracker(tmp_path / "mlruns")
    with tracked(tracker, "tables", "ours", kind="calibrate") as run:
        run.log_table("calibration/ranges.json", COLUMNS, ROWS)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    theirs = client.create_run(client.get_run(run.id).info.experiment_id).info.run_id
    client.log_table(theirs, pd.DataFrame(ROWS, columns=list(COLUMNS)), "calibration/ranges.json")

    tags, their_tags = (client.get_run(i).data.tags for i in (run.id, theirs))
    assert tags[schema.Tag.TABLES] == their_tags[schema.Tag.TABLES]
    written = Path(client.download_artifacts(theirs, "calibration/ranges.json", str(tmp_path))).read_text()
    assert json.loads(tracker.load(run.id).read_bytes("calibration/ranges.json")) == json.loads(written)


def test_nan_and_infinity_become_null() -> None:
    tracker = MemoryTracker()
    with tracked(tracker, "tables", "run", kind="calibrate") as run:
        run.log_table("t.json", ["x"], [[float("nan")], [float("inf")], [None], ["nan"], [1]])

    assert json.loads(tracker.load(run.id).read_bytes("t.json"))["data"] == [[None], [None], [None], ["nan"], [1]]


def test_runs_are_rows_of_a_frame() -> None:
    tracker = MemoryTracker()
    for precision, error in (("fp32", 0.0), ("fp16", 0.25)):
        with tracked(tracker, "tables", precision, kind="build") as run:
            run.log_params({"precision": precision})
            run.log_metrics({("error", "y", "max_abs"): error})
            run.finish("good")

    frame = Runs(tracker.find("tables")).to_frame()

    assert list(frame["params.precision"]) == ["fp16", "fp32"] and set(frame["verdict"]) == {"good"}
    assert frame["metrics.error/y/max_abs"].max() == 0.25 and str(frame["started"].dt.tz) == "UTC"
    assert list(Runs().to_frame().columns) == ["experiment", "name", "kind", "status", "verdict", "started"]
