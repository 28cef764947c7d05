"""A real MLflow server over an embedded store, which can be ended and started again at the same address."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from typing_extensions import Self

from trtops.tracking.location import Store
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.embedded import server_command


class MlflowServer:
    """A server in a process group of its own, whose log is next to the store.

    ``by_command`` starts it by the command that people use, which imports MLflow once more.
    """

    def __init__(self, root: Path, *, by_command: bool = False) -> None:
        self.root = root
        self._by_command = by_command
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    @property
    def is_up(self) -> bool:
        """Whether it was started and not ended."""
        return self._process is not None

    @property
    def session(self) -> int | None:
        """The session that its processes are in; None while it is down."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers.

        The store is made here, where MLflow is imported already, unless the command is to do that.
        """
        log = self.root.parent / "log.txt"
        words = ["-m", "trtops.cli", "store", "ui", "--root", str(self.root), "--port", str(self.port)]
        command, environment = [sys.executable, *words], dict(os.environ)
        if not self._by_command:
            MlflowTracker(self.root)
            command, environment = server_command(Store(database=self.root.resolve() / "mlflow.db"), self.port)
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        while True:
            try:
                with urllib.request.urlopen(f"{self.address}/health"):
                    return
            except OSError:
                assert self._process.poll() is None, log.read_text()
                time.sleep(0.1)

    def kill(self) -> None:
        """End it and its workers at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
