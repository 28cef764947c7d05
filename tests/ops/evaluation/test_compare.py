"""Compare on real engines: a run is evaluated by what its precision promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from tests import models
from trtops.comparator.report import Tolerances
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.compare import CompareConfig, compare
from trtops.spec import BuildConfig, Precision
from trtops.tracking.memory import MemoryTracker

CHECK = CheckConfig(iterations=8, latency_runs=0, plots="never")


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_runs_are_compared_by_their_precision(precision: Precision, tmp_path: Path) -> None:
    case, tracker = models.conv_net(), MemoryTracker()
    path = case.write(tmp_path)
    for weight in case.proto.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.0001), weight.name))
    larger = case.write(tmp_path, "larger")
    asked = ConvertConfig(build=BuildConfig(precision=precision), check=CHECK)
    built = convert(path, asked, tracker=tracker)
    assert built.verdict == "good"

    usual = compare(f"run:{built.run_id}", path, CompareConfig(check=CHECK), tracker=tracker)
    turned = compare(path, f"run:{built.run_id[:8]}", CompareConfig(check=CHECK), tracker=tracker)
    strict = replace(CHECK, tolerances=Tolerances(atol=1e-9, rtol=1e-9))
    # An engine of FP32 may give the reference's very bits, but not those of a model whose weights are a little larger.
    asked_for = compare(f"run:{built.run_id}", larger, CompareConfig(check=strict), tracker=tracker)

    assert (usual.verdict, turned.verdict) == ("good", "good"), usual.reasons
    assert usual.evaluation.report.tolerances.atol_of_scale == built.evaluation.report.tolerances.atol_of_scale
    assert asked_for.verdict == "bad"
