"""Compare on real engines: a run is judged by what its precision promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from trtops.comparator.report import Tolerances
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.judging.compare import CompareConfig, compare
from trtops.ops.judging.judgement import CheckConfig
from trtops.spec import BuildConfig, Precision
from trtops.tracking.memory import MemoryTracker

CHECK = CheckConfig(iterations=8, latency_runs=0, plots="never")


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_a_run_is_held_to_the_tolerances_of_its_precision(precision: Precision, tmp_path: Path) -> None:
    path, tracker = models.conv_net().write(tmp_path), MemoryTracker()
    asked = ConvertConfig(build=BuildConfig(precision=precision), check=CHECK)
    built = convert(path, asked, tracker=tracker)
    assert built.verdict == "good"

    usual = compare(f"run:{built.run_id}", path, CompareConfig(check=CHECK), tracker=tracker)
    turned = compare(path, f"run:{built.run_id[:8]}", CompareConfig(check=CHECK), tracker=tracker)
    strict = replace(CHECK, tolerances=Tolerances(atol=1e-9, rtol=1e-9))
    asked_for = compare(f"run:{built.run_id}", path, CompareConfig(check=strict), tracker=tracker)

    assert (usual.verdict, turned.verdict) == ("good", "good"), usual.reasons
    assert usual.judgement.report.tolerances.atol_of_scale == built.judgement.report.tolerances.atol_of_scale
    assert asked_for.verdict == "bad"
