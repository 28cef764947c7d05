"""Which timing cache a trial is made with: that of the run whose choices it makes, where it makes no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trtops.ops.campaign.mixture import replay_order
from trtops.spec import BuildConfig, BuildSpec, TensorRTOptions
from trtops.tactics.record import TacticChoice, TacticRecord
from trtops.tracking import schema
from trtops.tracking.base import StoredRun
from trtops.tracking.memory import MemoryTracker


def record(mechanism: str, *tactics: str) -> TacticRecord:
    choices = tuple(TacticChoice(layer=f"conv{i}", op="Conv", tactic=tactic) for i, tactic in enumerate(tactics))
    return TacticRecord(mechanism=mechanism, backend_version="8.6.0", device_sha256="d", choices=choices)  # type: ignore[arg-type]


def run_with(made: TacticRecord, tracker: MemoryTracker) -> StoredRun:
    run = tracker.start("e", "build", kind="build")
    config = BuildConfig(precision="fp16", options=TensorRTOptions(tactic_seed=3))
    run.log_json(BuildSpec(model_sha256="m", config=config), schema.Artifact.SPEC)
    run.log_json(made, schema.Artifact.TACTICS)
    run.finish("good")
    return tracker.load(run.id)


@pytest.mark.parametrize("mechanism", ["algorithm_selector", "editable_timing_cache"])
def test_own_choices_use_the_timing_cache(mechanism: str) -> None:
    made = record(mechanism, "a", "b")
    tracker = MemoryTracker()
    start = run_with(made, tracker)

    order = replay_order(made, start)

    assert order.replayed_run == start.info.id
    assert order.build.options == TensorRTOptions()  # no longer drawn at random


def test_other_choices_need_an_editable_timing_cache() -> None:
    tracker = MemoryTracker()
    for mechanism, given in (("algorithm_selector", False), ("editable_timing_cache", True)):
        made = record(mechanism, "a", "b")
        start = run_with(made, tracker)
        swapped = replace(made, choices=(made.choices[0], replace(made.choices[1], tactic="c")))

        assert bool(replay_order(swapped, start).replayed_run) is given
