"""Stores for the tests of tracking: a database made once and copied, and a real MLflow server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtops.tracking import store


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of an empty embedded store; making one takes seconds, copying it milliseconds."""
    root = tmp_path_factory.mktemp("template") / "mlruns"
    store.ensure_store(root)
    return root


@pytest.fixture
def new_store(template: Path) -> Callable[[Path], Path]:
    """A function that puts an empty store where it is told."""
    return lambda root: copy_store(template, root)


def copy_store(template: Path, root: Path) -> Path:
    shutil.copytree(template, root)
    store.relocate(root)
    return root


@pytest.fixture(scope="session")
def server_root(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps its database and artifacts."""
    return copy_store(template, tmp_path_factory.mktemp("server") / "mlruns")


@pytest.fixture(scope="session")
def server(server_root: Path) -> Iterator[str]:
    """The address of an MLflow server of its own process group, which ends with the tests."""
    root, folder = server_root, server_root.parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "cwd").mkdir()
    with open(folder / "log.txt", "wb") as log:
        process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "mlflow",
                    "server",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(port),
                    "--workers",
                    "1",
                ),
                *("--backend-store-uri", f"sqlite:///{root}/mlflow.db", "--artifacts-destination", f"{root}/artifacts"),
            ],
            cwd=folder / "cwd",
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _await_health(f"http://127.0.0.1:{port}", process, folder / "log.txt")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await_health(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    raise AssertionError(f"The server did not come up:\n{log.read_text()}")
