"""What all tests share: nothing of the machine's own tracking or Prefect settings reaches them, and GPU tests get a GPU."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "PREFECT_API_URL", "TRTOPS_HOME"):
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, unless ``TRTOPS_REQUIRE_GPU=1`` says that there has to be one."""
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu or os.environ.get("TRTOPS_REQUIRE_GPU") == "1" or _has_gpu():
        return
    for item in gpu:
        item.add_marker(pytest.mark.skip(reason="needs TensorRT and a GPU; TRTOPS_REQUIRE_GPU=1 makes this an error"))


def _has_gpu() -> bool:
    from trtops.backend.trt import memory

    return importlib.util.find_spec("tensorrt") is not None and memory.device_count() > 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give tests to processes one by one, but those together that share what takes seconds to make.

    pytest-xdist's own groups, by marker, do nothing beside pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    return Together(config, log)


def together(nodeid: str) -> str:
    """What a test has in common with those that are to run in its process.

    Flows share a Prefect server, GPU tests of a file their engines, and the documents' command lines their folders. The one
    test that takes minutes joins many: the largest company begins first.
    """
    file, _, test = nodeid.partition("::")
    if file.startswith("tests/flows/"):
        return "flows"
    if "gpu" not in file:
        return nodeid
    if "campaign" in file:
        return "tests/backend/trt/test_loaders_on_gpu.py"
    return f"{file} {test.partition('[')[2][:3]}" if "seeds" in file else file
