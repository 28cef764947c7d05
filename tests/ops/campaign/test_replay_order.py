"""Which timing cache a trial is made with: that of the run whose choices it makes, where it makes no others."""

from __future__ import annotations

import numpy as np
import pytest

from trtops.ops.campaign.mixture import Mixture
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


@pytest.mark.parametrize(("mechanism", "editable"), [("algorithm_selector", False), ("editable_timing_cache", True)])
def test_other_choices_need_an_editable_timing_cache(mechanism: str, editable: bool) -> None:
    tracker = MemoryTracker()
    good, bad = (run_with(record(mechanism, "a", last), tracker) for last in "bc")
    mixture = Mixture(good, bad)

    own, other = (mixture.request(np.array([taken])) for taken in (False, True))

    assert own.replayed_run == good.info.id
    assert own.build.options == TensorRTOptions()  # no longer drawn at random
    assert bool(other.replayed_run) is editable
    assert other.replay is not None and [choice.tactic for choice in other.replay.choices] == ["a", "c"]
