"""Tests of what every op's result has: its page, and the run that it names."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from trtops.ops.result import OpResult, op_run, op_times, run_name, run_step, step_time
from trtops.tracking.base import NO_RUN, Verdict
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact, Tag


@dataclass(frozen=True, kw_only=True)
class Measured(OpResult):
    verdict: Verdict
    error: float

    def body(self) -> Iterable[str]:
        return [f"The error is {self.error}."]


def test_page_has_heading_body_and_link() -> None:
    result = Measured(title="measure m", run_id="ab12", url="#/runs/ab12", experiment="m", verdict="bad", error=0.5)
    assert result.page() == "# measure m: bad\n\nThe error is 0.5.\n\nMLflow run `ab12` in experiment `m`."
    linked = Measured.from_json(result.to_json().replace("#/", "http://host/#/"))
    assert "MLflow run [ab12](http://host/#/runs/ab12) in" in linked.page()


def test_page_omits_runs_of_this_process() -> None:
    result = Measured(title="measure m", verdict="good", error=0.0)
    with op_run(MemoryTracker(), "m", "measure m", kind="compare") as op:
        recorded = op.finish(result)
    assert (recorded.run_id, recorded.experiment) == (op.run.id, "m")
    assert "MLflow" not in recorded.page() and recorded.page() == result.page()


def test_times_of_steps_are_recorded() -> None:
    tracker = MemoryTracker()
    with op_times() as times:
        run_step("before the run", time.sleep, 0.02)
        with op_run(tracker, "m", "n", kind="compare") as op:
            for _ in range(2):
                with step_time("outer"):
                    run_step("sleep", time.sleep, 0.02)
                with op_run(tracker, "m", "called op", kind="compare"):
                    run_step("of the called op", time.sleep, 0.0)
            op.finish(Measured(verdict="good", error=0.0))
    timings = json.loads(tracker.load(op.run.id).read_bytes(Artifact.TIMING))
    assert [*times.to_dict()] == [
        *("before the run", "start run", "outer", "sleep", "log", "draw report"),
        *("other", "total"),
    ]
    assert timings["before the run"]["seconds"] >= 0.02
    assert timings["sleep"]["seconds"] >= 0.04 > timings["sleep"]["cpu_seconds"]
    total = timings.pop("total")["seconds"]
    assert abs(sum(step["seconds"] for step in timings.values()) - total) < 0.01  # nothing counts twice


def test_op_runs_are_named_and_tagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").touch()
    tracker = MemoryTracker()
    with op_run(tracker, "m", "n" * 300, kind="compare", model="m.onnx", tags={"a": "b"}) as op:
        op.run.finish("good")
    info = tracker.info(op.run.id)
    assert (info.name, info.status, info.verdict) == ("n" * 250, "finished", "good")
    assert info.fact(Tag.MODEL_PATH) == str(Path("m.onnx").absolute()) and info.tags["a"] == "b"


def test_run_names_fit_a_table() -> None:
    assert run_name("resnet50", "FP16", "trt", "L4") == "FP16 trt L4 resnet50"
    assert run_name("resnet50", "FP32 (not FP16)", verdict="bad") == "✗ FP32 (not FP16) resnet50"


def test_without_tracker_nothing_is_logged() -> None:
    with op_run(None, "m", "measure m", kind="compare", model="m.onnx") as op:
        op.run.log_text("kept nowhere", "a.txt")
        result = Measured(title="measure m", verdict="good", error=0.0)
        assert op.run is NO_RUN and op.finish(result) is result
