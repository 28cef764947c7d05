"""One Prefect home for all flow tests of a process, with the embedded server that flows start by themselves."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Prefect reads these when it is first imported, which test modules do at the top.
_HOME = tempfile.TemporaryDirectory(prefix="trtops-prefect-")
os.environ["PREFECT_HOME"] = _HOME.name
os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "900"
os.environ["PREFECT_LOGGING_LEVEL"] = "ERROR"  # the server says goodbye after pytest has closed the output
os.environ["PREFECT_RESULTS_LOCAL_STORAGE_PATH"] = f"{_HOME.name}/results"


@pytest.fixture(scope="session", autouse=True)
def prefect_home(prefect_database: Path) -> Path:
    """Where Prefect keeps its database and, if anything were persisted, results."""
    for name in ("prefect.db", ".trtops-ready"):
        shutil.copy(prefect_database / name, _HOME.name)
    return Path(_HOME.name)


@pytest.fixture(scope="session")
def server(prefect_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prefect's server, started from a folder whose modules must not be imported."""
    import prefect

    from tests.hostile import plant_modules
    from trtops.flows.server import ensure_prefect_home

    folder = tmp_path_factory.mktemp("downloads")
    plant_modules(folder, folder / "imported")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ensure_prefect_home()
        prefect.flow(name="first")(lambda: None)()
    yield
    assert not (folder / "imported").exists(), (folder / "imported").read_text()


@pytest.fixture
def store(server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of the test's own, where flows log by default."""
    root = tmp_path / "mlruns"
    monkeypatch.setenv("TRTOPS_HOME", str(root))
    yield root
