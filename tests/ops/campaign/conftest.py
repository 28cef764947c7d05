"""The model, its feed and the store that the tests of a file share."""

from pathlib import Path

import pytest

from tests.campaigns import two_blocks
from trtops.tracking.mlflow import MlflowTracker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("campaigns")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return two_blocks(folder)[0]


@pytest.fixture(scope="module")
def data(folder: Path, model: Path) -> Path:
    return folder / "feed.npz"


@pytest.fixture(scope="module")
def tracker(folder: Path) -> MlflowTracker:
    return MlflowTracker(folder / "mlruns")
