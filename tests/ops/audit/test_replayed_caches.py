"""An audit replays a tactic record with its timing cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trtops.backend.base import Caches
from trtops.ops.auditing.rebuilding import builder_inputs
from trtops.spec import BuildConfig, TensorRTOptions
from trtops.tactics.record import TacticRecord


@pytest.mark.parametrize(
    ("mechanism", "timing"),
    [("editable_timing_cache", b"timings"), ("algorithm_selector", b"timings"), ("onnxruntime", None)],
)
def test_replay_uses_the_timing_cache_of_its_build(mechanism: str, timing: bytes | None) -> None:
    """The builder only changes existing entries of an editable cache (``ITimingCache::update``)."""
    record = TacticRecord(mechanism=mechanism, backend_version="10.8.0", device_sha256="d", choices=())  # type: ignore[arg-type]
    config = BuildConfig(precision="fp16", options=TensorRTOptions(tactic_seed=2))
    build = SimpleNamespace(spec=SimpleNamespace(config=config), tactics=record, timing_cache=b"timings")
    logged = SimpleNamespace(build=build, caches=Caches(calibration=b"ranges", timing=b"given"))

    made, caches = builder_inputs("replay", logged)  # type: ignore[arg-type]

    assert made.options == TensorRTOptions()
    assert caches == Caches(calibration=b"ranges", replay=record, timing=timing)
