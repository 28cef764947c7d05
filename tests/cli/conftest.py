"""A folder with models, TensorRT-RTX for tests that only build, and tests of what happens without any TensorRT."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests import models
from trtops import config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with models."""
    monkeypatch.chdir(tmp_path)
    for make in (models.identity, models.conv_net, models.transformer, models.multi_output, models.foldable):
        make().write(tmp_path)
    return tmp_path


@pytest.fixture
def rtx(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-RTX stands in for TensorRT during the test: it parses and builds without a GPU."""
    bindings = importlib.util.find_spec("tensorrt_rtx") or importlib.util.find_spec("tensorrt_rtx_bindings")
    libraries = importlib.util.find_spec("tensorrt_rtx") or importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    if bindings is None or libraries is None:
        pytest.skip("needs tensorrt-rtx-cu13-bindings and onnxruntime-ep-nv-tensorrt-rtx-cu13 (Linux, x86-64)")
    if importlib.util.find_spec("tensorrt") is not None:
        pytest.skip("TensorRT is installed, whose bindings do not live in one process with those of TensorRT-RTX")
    monkeypatch.setenv("TRTOPS_USE_TENSORRT_RTX", "1")  # for child processes
    monkeypatch.setattr(config, "USE_TENSORRT_RTX", True)


@pytest.fixture
def no_tensorrt() -> None:
    """Skips where TensorRT is installed."""
    if importlib.util.find_spec("tensorrt") is not None:
        pytest.skip("TensorRT is installed")
