"""TensorRT-RTX for the tests that only build, and a GPU for those marked so."""

from __future__ import annotations

import importlib.util
import os

import pytest


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


@pytest.fixture
def rtx(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-RTX stands in for TensorRT during the test: it parses and builds without a GPU."""
    bindings = importlib.util.find_spec("tensorrt_rtx") or importlib.util.find_spec("tensorrt_rtx_bindings")
    libraries = importlib.util.find_spec("tensorrt_rtx") or importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    if bindings is None or libraries is None:
        pytest.skip("needs tensorrt-rtx-cu13-bindings and onnxruntime-ep-nv-tensorrt-rtx-cu13 (Linux, x86-64)")
    if importlib.util.find_spec("tensorrt") is not None:
        pytest.skip("TensorRT is installed, whose bindings do not live in one process with those of TensorRT-RTX")
    monkeypatch.setenv("TRTOPS_USE_TENSORRT_RTX", "1")
