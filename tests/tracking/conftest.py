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

from trtops.tracking.mlflow import embedded


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of an empty embedded store; making one takes seconds, copying it milliseconds."""
    root = tmp_path_factory.mktemp("template") / "mlruns"
    embedded.ensure_store(root)
    return root


@pytest.fixture
def new_store(template: Path) -> Callable[[Path], Path]:
    """A function that puts an empty store where it is told."""
    return lambda root: copy_store(template, root)


def copy_store(template: Path, root: Path) -> Path:
    shutil.copytree(template, root)
    embedded.relocate(root)
    return root


@pytest.fixture(scope="session")
def server_root(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps its database and artifacts."""
    return copy_store(template, tmp_path_factory.mktemp("server") / "mlruns")


@pytest.fixture(scope="session")
def server(server_root: Path) -> Iterator[str]:
    """The address of an MLflow server of its own process group, which ends with the tests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log_file = server_root.parent / "log.txt"
    with open(log_file, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "trtops.tracking.store", "ui", "--root", str(server_root), "--port", str(port)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _await_health(f"http://127.0.0.1:{port}", process, log_file)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await_health(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health"):
                return
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
