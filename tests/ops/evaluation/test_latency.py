"""How often an engine runs to measure its latency."""

import pytest

from tests import models
from trtops.backend.engines import reference_runner
from trtops.backend.onnx.model import Model
from trtops.ops.evaluation import check


@pytest.mark.parametrize(("limit", "runs"), [(3600.0, 9), (0.0, 5)])
def test_slow_engines_are_timed_less_often(monkeypatch: pytest.MonkeyPatch, limit: float, runs: int) -> None:
    monkeypatch.setattr(check, "_LATENCY_SECONDS", limit)
    case = models.identity()
    with reference_runner(Model.from_proto(case.proto)) as runner:
        latency = check.measure_latency(runner, [case.feed], check.CheckConfig(warm_up=1, latency_runs=9))
    assert latency is not None and latency.runs == runs
