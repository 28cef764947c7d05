"""The model and its feed that the tests of a file share."""

from pathlib import Path

import pytest

from tests.campaigns import two_blocks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("campaigns")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return two_blocks(folder)[0]


@pytest.fixture(scope="module")
def data(folder: Path, model: Path) -> Path:
    return folder / "feed.npz"
