"""Fixtures for tests of large models: small models with lowered limits."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder for temporary files, which must be empty again at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    gc.collect()
    assert list(folder.iterdir()) == []


@pytest.fixture
def large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is large, and every weight of more than 64 bytes."""
    monkeypatch.setattr("trtops.backend.onnx.model._LARGE_BYTES", -1)
    monkeypatch.setattr("trtops.backend.onnx.external._SMALL_BYTES", 64)
