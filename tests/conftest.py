"""What all tests share: nothing of the machine's own tracking or Prefect settings reaches them, and GPU tests get a GPU."""

from __future__ import annotations

import importlib.util
import os

import pytest

for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "PREFECT_API_URL", "TRTOPS_HOME"):
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the GPU tests of a file in one process, unless they say otherwise, and skip them where there is no GPU.

    With ``TRTOPS_REQUIRE_GPU=1`` there has to be one.
    """
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    for item in gpu:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.name))  # what they share takes seconds to make
    if not gpu or os.environ.get("TRTOPS_REQUIRE_GPU") == "1" or _has_gpu():
        return
    for item in gpu:
        item.add_marker(pytest.mark.skip(reason="needs TensorRT and a GPU; TRTOPS_REQUIRE_GPU=1 makes this an error"))


def _has_gpu() -> bool:
    from trtops.backend.trt import memory

    return importlib.util.find_spec("tensorrt") is not None and memory.device_count() > 0
