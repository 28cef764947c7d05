"""Stores for the tests of tracking: a database made once and copied, and a real MLflow server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers import MlflowServer
from tests.stores import copy_store


@pytest.fixture
def new_store(template: Path) -> Callable[[Path], Path]:
    """A function that makes an empty store in a folder."""
    return lambda root: copy_store(template, root)


@pytest.fixture(scope="session")
def server_root(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps its database and artifacts."""
    root = copy_store(template, tmp_path_factory.mktemp("server") / "mlruns")
    for module in (
        "fastapi",
        "mlflow",
        "sqlalchemy",
    ):  # what lies in a store is not imported: the server would not start
        (root / f"{module}.py").write_text("raise SystemExit('a module of the store was imported')\n")
    return root


@pytest.fixture(scope="session")
def server(server_root: Path) -> Iterator[str]:
    """The address of an MLflow server that ends with the tests."""
    with MlflowServer(server_root, by_command=True) as server:
        yield server.address
