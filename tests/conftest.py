"""What all tests share: nothing of the machine's own tracking or Prefect settings reaches them, and GPU tests get a GPU."""

from __future__ import annotations

import importlib.util
import os

import pytest

for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "PREFECT_API_URL", "TRTOPS_HOME"):
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, unless ``TRTOPS_REQUIRE_GPU=1`` says that there has to be one."""
    if os.environ.get("TRTOPS_REQUIRE_GPU") == "1" or not any(item.get_closest_marker("gpu") for item in items):
        return
    from trtops.backend.trt import memory

    if importlib.util.find_spec("tensorrt") is not None and memory.device_count() > 0:
        return
    skip = pytest.mark.skip(reason="needs TensorRT and a GPU; TRTOPS_REQUIRE_GPU=1 makes this an error")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
