"""What MLflow's own pages and calls make of our runs: a status, a view, data sets, models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trtops.tracking.base import tracked
from trtops.tracking.mlflow import MlflowTracker


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
