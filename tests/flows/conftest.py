"""One Prefect server for all flow tests of a process."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Prefect reads these when it is first imported, which test modules do at the top.
_HOME = tempfile.TemporaryDirectory(prefix="trtops-prefect-")
os.environ["PREFECT_HOME"] = _HOME.name
os.environ["PREFECT_LOGGING_LEVEL"] = "ERROR"  # the server says goodbye after pytest has closed the output
os.environ["PREFECT_RESULTS_LOCAL_STORAGE_PATH"] = f"{_HOME.name}/results"


@pytest.fixture(scope="session", autouse=True)
def prefect_home(prefect_database: Path) -> Path:
    """Where Prefect keeps its database and, if anything were persisted, results."""
    shutil.copy(prefect_database / "prefect.db", _HOME.name)
    return Path(_HOME.name)


@pytest.fixture(scope="session")
def server(prefect_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prefect's server, as it is configured for this process and its children."""
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_API_URL, temporary_settings

    started = SubprocessASGIServer()
    started.start(timeout=900)
    with pytest.MonkeyPatch.context() as patch, temporary_settings({PREFECT_API_URL: started.api_url}):
        patch.setenv("PREFECT_API_URL", started.api_url)
        yield
    started.stop()


@pytest.fixture
def store(server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of the test's own, where flows log by default."""
    root = tmp_path / "mlruns"
    monkeypatch.setenv("TRTOPS_HOME", str(root))
    yield root
