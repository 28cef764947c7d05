"""The configuration of a team's servers, the folder they are kept in, and their status."""

from __future__ import annotations

import os
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from trtops import errors
from trtops.files import open_atomically
from trtops.record import Record

ServiceState: TypeAlias = Literal["up", "not answering", "dead", "down"]

POOLS = {"cpu": "trtops-cpu", "gpu": "trtops-gpu"}
"""Work pools of type "process", by the device of their workers."""


@dataclass(frozen=True, kw_only=True)
class TeamConfig(Record):
    """How to start the servers. None means: as at the last start, or the default.

    Attributes:
        prefect_port: TCP port of Prefect's API and UI (default: 4200); 0 takes a free one.
        mlflow_port: TCP port of MLflow (default: 5000); 0 takes a free one.
        database: Address of a PostgreSQL server that has the databases prefect, mlflow and mlflow_auth, such as
            "postgresql://trtops@db.example.org"; "sqlite" (the default) keeps the data in files of the folder. It
            cannot change once it is chosen, since the data are there.
        limit: Number of flow runs that a worker runs at a time (default: 2).
        gpu: Whether to start a worker for the GPU pool too; by default if there is a GPU.
        wait_seconds: How long to wait for each server to answer.
    """

    prefect_port: int | None = None
    mlflow_port: int | None = None
    database: str | None = None
    limit: int | None = None
    gpu: bool | None = None
    wait_seconds: float = 240.0

    def __post_init__(self) -> None:
        for name, port in (("prefect_port", self.prefect_port), ("mlflow_port", self.mlflow_port)):
            if port is not None and not 0 <= port < 65536:
                raise errors.ConfigError(f"{name} is {port}; expected 0 to 65535.")
        if self.limit is not None and self.limit < 1:
            raise errors.ConfigError(f"limit is {self.limit}; expected 1 or more.")
        if self.database not in (None, "sqlite"):
            url = urllib.parse.urlsplit(self.database)
            if url.scheme != "postgresql":
                raise errors.ConfigError(f"database begins with {url.scheme!r}; expected sqlite or postgresql://...")
            if url.password is not None:  # it would stand in team.json and in the environment of the servers
                raise errors.ConfigError("database contains a password. Put it into ~/.pgpass instead.")


@dataclass(frozen=True, kw_only=True)
class Started(Record):
    """A process that was started.

    Attributes:
        name: ``prefect``, ``mlflow``, ``worker-cpu`` or ``worker-gpu``.
        pid: Its process id.
        since: When it was started, in seconds since the epoch.
        address: Its URL or work pool.
        token: A random text in the environment of the process and of all that it started.
    """

    name: str
    pid: int
    since: float
    address: str
    token: str


@dataclass(frozen=True, kw_only=True)
class TeamState(Record):
    """What is stored from one command to the next; the fields are those of :class:`TeamConfig`.

    Attributes:
        host: Name of the machine that the processes run on.
        services: The processes that were started and not ended, in the order of their start.
    """

    prefect_port: int
    mlflow_port: int
    database: str
    limit: int
    gpu: bool
    host: str
    services: tuple[Started, ...] = ()

    @property
    def prefect_url(self) -> str:
        """Address of Prefect's UI; its API is below ``/api``."""
        return f"http://127.0.0.1:{self.prefect_port}"

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow."""
        return f"http://127.0.0.1:{self.mlflow_port}"

    def started(self, name: str) -> Started | None:
        """The process of this name, if it was started."""
        return next((started for started in self.services if started.name == name), None)


@dataclass(frozen=True, kw_only=True)
class ServiceStatus(Record):
    """The status of one process.

    Attributes:
        name: As in :class:`Started`.
        state: ``up``; ``not answering``: the process runs, but does not answer; ``dead``: it ended by itself;
            ``down``: it was not started, or was ended.
        address: Its URL or work pool; empty if it was not started.
        since: When it was started, in seconds since the epoch; None if it was not started.
        pid: Its process id; None if there is no process.
        log_end: The end of its log, if it is dead or does not answer.
    """

    name: str
    state: ServiceState
    address: str = ""
    since: float | None = None
    pid: int | None = None
    log_end: str = ""


@dataclass(frozen=True, kw_only=True)
class TeamStatus(Record):
    """The status of all processes.

    Attributes:
        folder: The team's folder.
        database: As in :class:`TeamConfig`; empty before the first start.
        services: In the order in which they are started.
    """

    folder: str
    database: str
    services: tuple[ServiceStatus, ...]

    @property
    def all_up(self) -> bool:
        """Whether everything is up."""
        return all(service.state == "up" for service in self.services)

    def text(self) -> str:
        """The status as text, one line per process; empty before the first start."""
        lines = []
        for service in self.services:
            line = f"{service.name:<11} {service.state:<14}"
            if service.since is not None:
                line += time.strftime(f" {service.address}  since %Y-%m-%d %H:%M:%S", time.localtime(service.since))
            lines.append(line.rstrip() + (f", pid {service.pid}" if service.pid is not None else ""))
        for service in self.services:
            if service.log_end:
                lines += ["", f"{service.name} is {service.state}; the end of its log:", service.log_end]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class TeamFolder:
    """The folder of the servers' files. Creating the object does not create the folder.

    Attributes:
        root: Its absolute path.
    """

    root: Path

    @classmethod
    def default(cls, store: str | Path | None = None) -> TeamFolder:
        """The folder ``team`` in a store's folder: the given one, ``TRTOPS_HOME``, or ``./mlruns``."""
        return cls(root=Path(store or os.environ.get("TRTOPS_HOME") or "mlruns").resolve() / "team")

    @property
    def passwords(self) -> Path:
        """The file with all passwords."""
        return self.root / "passwords.ini"

    @property
    def prefect(self) -> Path:
        """Prefect's folder (``PREFECT_HOME``)."""
        return self.root / "prefect"

    @property
    def mlflow(self) -> Path:
        """The folder of MLflow's artifacts and SQLite databases."""
        return self.root / "mlflow"

    def log(self, service: str) -> Path:
        """The log file of a process."""
        return self.root / "logs" / f"{service}.log"

    def make(self) -> None:
        """Create the folder, closed to other users.

        Raises:
            ConfigError: If it cannot be created.
        """
        try:
            for folder in (self.root, self.root / "logs", self.prefect, self.mlflow):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
        except OSError as exc:
            raise errors.ConfigError(f"{exc.filename}: {exc.strerror}. Set TRTOPS_HOME to another folder.") from exc

    def read(self) -> TeamState | None:
        """The stored state; None before the first start.

        Raises:
            FormatError: If the file is damaged.
        """
        file = self.root / "team.json"
        try:
            return TeamState.from_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except errors.FormatError as exc:
            raise errors.FormatError(
                f"{file} cannot be read: {exc} End the processes of {self.root} by hand and delete the file."
            ) from None

    def write(self, state: TeamState) -> None:
        """Store the state."""
        with open_atomically(self.root / "team.json") as file:
            file.write(state.to_json().encode())
