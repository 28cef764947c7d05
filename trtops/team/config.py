"""What a team's servers are asked to be, and what they are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trtops import errors
from trtops.record import Record
from trtops.tracking.owner import Owner

Database: TypeAlias = Literal["postgresql", "sqlite"]
ServiceState: TypeAlias = Literal["up", "not answering", "dead", "down"]

POOLS = {"cpu": "trtops-cpu", "gpu": "trtops-gpu"}
"""Work pools of type "process", by what their workers have."""


@dataclass(frozen=True, kw_only=True)
class TeamConfig(Record):
    """How to start the servers. What is None is as it was the last time, or the default.

    Attributes:
        prefect_port: TCP port of Prefect's API and UI; 0 takes a free one; 4200 by default.
        mlflow_port: TCP port of MLflow; 0 takes a free one; 5000 by default.
        database: Where both keep their data. By default PostgreSQL where it is installed, and SQLite otherwise; once
            chosen it stays, since the data are there.
        limit: Flow runs that a worker carries out at a time; 2 by default.
        gpu: Whether a worker for the GPU pool is started too; by default where there is a GPU.
        wait_seconds: How long to wait for each to answer.
    """

    prefect_port: int | None = None
    mlflow_port: int | None = None
    database: Database | None = None
    limit: int | None = None
    gpu: bool | None = None
    wait_seconds: float = 240.0

    def __post_init__(self) -> None:
        for name, port in (("prefect_port", self.prefect_port), ("mlflow_port", self.mlflow_port)):
            if port is not None and not 0 <= port < 65536:
                raise errors.ConfigError(f"{name} is {port}; expected 0 to 65535.")
        if self.limit is not None and self.limit < 1:
            raise errors.ConfigError(f"limit is {self.limit}; expected 1 or more.")


@dataclass(frozen=True, kw_only=True)
class Started(Record):
    """A process that was started.

    Attributes:
        name: ``postgres``, ``prefect``, ``mlflow``, ``worker-cpu`` or ``worker-gpu``.
        owner: The process, as it can be told from a later one with the same id.
        since: When it was started, in seconds since the epoch.
        address: Where it answers: a URL, a socket's folder, or a work pool.
        log: Its log file.
        token: What it and all that it started have in their environment.
    """

    name: str
    owner: Owner
    since: float
    address: str
    log: str
    token: str


@dataclass(frozen=True, kw_only=True)
class TeamState(Record):
    """What is remembered from one command to the next.

    Attributes:
        prefect_port: As in :class:`TeamConfig`, with nothing left open; so are ``mlflow_port``, ``limit`` and ``gpu``.
        mlflow_port: TCP port of MLflow.
        database: Where the data are.
        limit: Flow runs that a worker carries out at a time.
        gpu: Whether there is a worker for the GPU pool.
        services: What was started and not ended, in the order it was started in.
    """

    prefect_port: int
    mlflow_port: int
    database: Database
    limit: int
    gpu: bool
    services: tuple[Started, ...] = ()

    @property
    def prefect_url(self) -> str:
        """Address of Prefect's UI; its API is below ``/api``."""
        return f"http://127.0.0.1:{self.prefect_port}"

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow."""
        return f"http://127.0.0.1:{self.mlflow_port}"

    @property
    def pools(self) -> dict[str, str]:
        """Names of workers' processes, with their work pools."""
        return {f"worker-{kind}": pool for kind, pool in POOLS.items() if kind == "cpu" or self.gpu}


@dataclass(frozen=True, kw_only=True)
class ServiceStatus(Record):
    """One process, now.

    Attributes:
        name: As in :class:`Started`.
        state: ``up``; ``not answering``: the process is there, but its server is silent; ``dead``: it ended by itself;
            ``down``: it was not started, or was ended.
        address: Where it answers; empty if it was not started.
        since: When it was started, in seconds since the epoch; None if it was not.
        pid: Its process id; None if there is no process.
        log: Its log file; empty if it was not started.
        last_words: The end of its log, of one that is dead or silent.
    """

    name: str
    state: ServiceState
    address: str = ""
    since: float | None = None
    pid: int | None = None
    log: str = ""
    last_words: str = ""

    def line(self) -> str:
        """The status in a line of text."""
        if self.since is None:
            return f"{self.name:<11} {self.state}"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        pid = f", pid {self.pid}" if self.pid is not None else ""
        return f"{self.name:<11} {self.state:<14} {self.address}  since {when}{pid}"


@dataclass(frozen=True, kw_only=True)
class TeamStatus(Record):
    """All processes, now.

    Attributes:
        folder: The team's folder.
        database: What the data are kept in; empty before the first start.
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
        """A line for each process, with the last words of those that died."""
        lines = [service.line() for service in self.services]
        for service in self.services:
            if service.last_words:
                lines += ["", f"{service.name} is {service.state}; the end of {service.log}:", service.last_words]
        return "\n".join(lines)
