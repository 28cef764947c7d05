"""Templates and capability reports on the real TensorRT-RTX."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import models
from trtops.backend.common import invoke_from_script
from trtops.backend.trt import engine_bytes_from_network
from trtops.ops.model.capability import CapabilityConfig, capability
from trtops.ops.model.template import template

pytestmark = pytest.mark.usefixtures("rtx")


@pytest.mark.parametrize("with_model", [False, True])
def test_a_network_script_makes_a_network_that_builds(tmp_path: Path, with_model: bool) -> None:
    model = models.identity().write(tmp_path) if with_model else None
    template("trt-network", tmp_path / "network.py", model=model)
    parts = invoke_from_script(str(tmp_path / "network.py"), "load_network")
    assert engine_bytes_from_network(parts).nbytes > 1000


def test_config_script_uses_the_models_profile(tmp_path: Path) -> None:
    model = models.conv_net().write(tmp_path)
    template("trt-network", tmp_path / "network.py", model=model)
    template("trt-config", tmp_path / "config.py", model=model)
    parts = invoke_from_script(str(tmp_path / "network.py"), "load_network")
    config = invoke_from_script(str(tmp_path / "config.py"), "load_config", *parts[:2])
    assert config.num_optimization_profiles == 1


def test_a_whole_model_is_taken() -> None:
    report = capability(models.conv_net().proto, CapabilityConfig(backend="tensorrt"))
    assert report.supported
    assert len(report.parts) == 1


def test_unknown_operator_splits_the_model() -> None:
    report = capability(models.no_kernel().proto, CapabilityConfig(backend="tensorrt"))
    assert not report.supported
    assert [(refusal.op, refusal.nodes) for refusal in report.refused] == [("custom.Frobnicate", ("frob",))]
    assert [part.supported for part in report.parts] == [True, False, True]
