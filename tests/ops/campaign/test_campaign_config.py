"""What a campaign asks for: the same builds as other ops, and configs that were stored before still open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import models
from trtops import errors
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import debug_build
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Tag

BUILD = BuildConfig(precision="int8")
CHECK = CheckConfig(latency_runs=0, plots="never", iterations=3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.conv_net().write(tmp_path, "conv")


def _campaign_spec(model: Path, config: DebugBuildConfig, tracker: MemoryTracker) -> str:
    made = debug_build(model, config, tracker=tracker)
    [iteration] = tracker.find(parent=made.run_id, tags={Tag.KIND: "iteration"})
    return iteration.tags[Tag.SPEC_SHA256]


def test_int8_spec_equals_convert_with_a_file(model: Path, tmp_path: Path) -> None:
    tracker, specs = MemoryTracker(), {}
    for name, scale in (("small", 1.0), ("large", 3.0)):
        feed = {key: array * np.float32(scale) for key, array in models.conv_net().feed.items()}
        data = str(tmp_path / f"{name}.npz")
        np.savez(data, **feed)
        converted = convert(model, ConvertConfig(build=BUILD, check=CHECK, calibration_data=data), tracker=tracker)
        campaign = DebugBuildConfig(build=BUILD, check=CHECK, calibration_data=data, until=1)
        specs[name] = converted.spec_sha256
        assert _campaign_spec(model, campaign, tracker) == converted.spec_sha256
    assert specs["small"] != specs["large"]


def test_until_beyond_the_limit_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match=r"until is 400.*after 200 builds.*--max-builds 400"):
        DebugBuildConfig(until=400)
    assert DebugBuildConfig(until=400, max_iterations=400).limit == 400
