"""A campaign with some bad builds: ONNX Runtime may approximate the GELUs of a transformer; the tolerance is 1e-4."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import compose

from tests import models
from trtops.comparator.report import Tolerances
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions

FAST = "com.microsoft.FastGelu@CPUExecutionProvider"
GELUS = ("one/e4", "two/e4")


def two_blocks(folder: Path) -> tuple[Path, Path]:
    """Two transformer blocks with a GELU each, and a feed; paths of both."""
    case = models.transformer()
    proto = compose.merge_models(case.proto, case.proto, io_map=[("y", "x")], prefix1="one/", prefix2="two/")
    path, data = folder / "blocks.onnx", folder / "feed.npz"
    onnx.save(proto, path)
    np.savez(data, **{f"one/{name}": array for name, array in case.feed.items()})
    return path, data


def of_one_node(count: int) -> DebugBuildConfig:
    """A campaign of a model with one node, so that the campaign and the store are measured, not the builds."""
    return DebugBuildConfig(
        build=BuildConfig(options=OnnxRuntimeOptions(timing_iterations=1, intra_op_threads=1)),
        check=CheckConfig(plots="never", latency_runs=0),
        random_tactics=True,
        until=count,
        max_iterations=count,
        keep_model=False,
    )


def config(data: Path, **changes: Any) -> DebugBuildConfig:
    """A campaign over :func:`two_blocks` whose tactics are drawn at random, so that it is the same wherever it runs."""
    options = OnnxRuntimeOptions(allow_approximation=True, timing_iterations=4, intra_op_threads=1)
    usual = DebugBuildConfig(
        build=BuildConfig(options=options),
        check=CheckConfig(data=str(data), tolerances=Tolerances(atol=1e-4, rtol=1e-4), plots="never", latency_runs=0),
        random_tactics=True,
        complete=True,
        clean_builds=4,
    )
    return dataclasses.replace(usual, **changes)
