"""Start, end and inspect the servers and workers of a team.

A process is found again by its id (``logs/<name>.pid``) and by a variable in its environment, which everything that it
starts inherits: MLflow's server has worker processes, and a Prefect worker has one process for each flow run, in a
session of its own.
"""

from __future__ import annotations

import configparser
import contextlib
import logging
import os
import platform
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from trtops import errors
from trtops.record import Record
from trtops.team.access import (
    POOLS,
    Passwords,
    TeamState,
    client_environment,
    read_state,
    service_environment,
    team_folder,
    write_state,
)

log = logging.getLogger(__name__)

SERVICE = "TRTOPS_TEAM_SERVICE"
"""The environment variable with the team's folder and the name of the service."""

_ANSWER_SECONDS = 5.0
_STOP_SECONDS = 30.0
_KILL_SECONDS = 5.0
_POLL_SECONDS = 0.25

_popens: list[subprocess.Popen[bytes]] = []  # kept, since Python warns about one that is dropped while it runs


@dataclass(frozen=True, kw_only=True)
class Service:
    """A process to be started. Its command line has no secrets, since every user of the machine can read it."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    address: str
    answers: Callable[[], bool]
    port: int | None = None


@dataclass(frozen=True, kw_only=True)
class ServiceStatus(Record):
    """The status of a process."""

    name: str
    state: str
    """``up``, ``not answering``, ``dead`` (it ended by itself) or ``down`` (it was not started, or was ended)."""
    text: str
    """All of it on a line; and the end of the log, if the process does not answer."""


def up(
    folder: Path | None = None,
    *,
    wait_seconds: float = 240.0,
    progress: Callable[[str], None] = log.info,
    **changes: Any,
) -> tuple[ServiceStatus, ...]:
    """Start the servers and workers that are not up, and wait until all of them answer.

    Args:
        folder: The team's folder.
        wait_seconds: How long to wait for each.
        progress: Called with a line for each step.
        changes: Fields of :class:`trtops.team.access.TeamState`; None and what is not given stay as at the last start.
            A port of 0 takes a free one.

    Raises:
        ConfigError: If a process cannot be started, ends, or does not answer in time; the message has the end of its
            log. What this call started is ended again.
    """
    folder = team_folder() if folder is None else folder
    with _locked(folder):
        passwords = Passwords.ensure(folder)
        before = read_state(folder) or TeamState()
        state = replace(before, **{name: value for name, value in changes.items() if value is not None})
        if state != before and any(main_process(folder, name) for name in _started(folder)):
            raise errors.ConfigError("The servers are up with other settings. First: trtops team down")
        state = replace(
            state, prefect_port=state.prefect_port or _free_port(), mlflow_port=state.mlflow_port or _free_port()
        )
        write_state(folder, state)
        _write_mlflow_config(folder, state, passwords)
        begun: list[str] = []
        try:
            for stage in stages(folder, state, passwords):
                for service in stage:
                    if main_process(folder, service.name) is not None:
                        progress(f"{service.name} is up already.")
                        continue
                    _stop(folder, service.name)  # the processes that a dead one left
                    progress(f"Starting {service.name} ...")
                    begun.append(service.name)
                    _start(service, folder)
                for service in stage:
                    _wait_for(service, folder, wait_seconds)
        except BaseException as exc:
            _end(folder, begun, log.info)
            if isinstance(exc, errors.ConfigError):
                raise errors.ConfigError(passwords.hide(str(exc))) from None
            raise
    return status(folder)


def down(folder: Path | None = None, *, progress: Callable[[str], None] = log.info) -> tuple[ServiceStatus, ...]:
    """End everything that :func:`up` started, workers first, with their flow runs."""
    folder = team_folder() if folder is None else folder
    if read_state(folder) is not None:
        with _locked(folder):
            _end(folder, _started(folder), progress)
    return status(folder)


def status(folder: Path | None = None) -> tuple[ServiceStatus, ...]:
    """The status of all processes; none before the first start. Starts nothing."""
    folder = team_folder() if folder is None else folder
    state = read_state(folder)
    if state is None:
        return ()
    found = []
    passwords = Passwords.ensure(folder)
    for service in (service for stage in stages(folder, state, passwords) for service in stage):
        name, text = "down", ""
        if service.name in _started(folder):
            process = main_process(folder, service.name)
            name = "dead" if process is None else "up" if service.answers() else "not answering"
            since = time.localtime(_file(folder, service.name, "pid").stat().st_mtime)
            text = time.strftime(f" {service.address}  since %Y-%m-%d %H:%M:%S", since)
            text += f", pid {process.pid}" if process is not None else ""
            if name != "up":
                text += "\n" + passwords.hide(_end_of(_file(folder, service.name, "log")))
        found.append(ServiceStatus(name=service.name, state=name, text=f"{service.name:<11} {name:<14}{text}".rstrip()))
    return tuple(found)


def stages(folder: Path, state: TeamState, passwords: Passwords) -> tuple[tuple[Service, ...], ...]:
    """All processes; those of a stage are started together, once those of the previous stage answer."""
    python = (sys.executable, "-m")
    prefect = {
        "PREFECT_SERVER_API_AUTH_STRING": passwords.prefect_auth,
        # The server's own services call its API, and its UI cannot guess the address on another port.
        "PREFECT_API_AUTH_STRING": passwords.prefect_auth,
        "PREFECT_API_URL": f"{state.prefect_url}/api",
        "PREFECT_SERVER_UI_API_URL": f"{state.prefect_url}/api",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{state.prefect_url},http://localhost:{state.prefect_port}",
    }
    if state.database != "sqlite":
        prefect["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = _database(folder, state, "prefect", "asyncpg")
    mlflow = {
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "mlflow" / "basic-auth.ini"),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": passwords.mlflow_secret_key,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # it costs 1 GB and 10 s, and trtops has no such jobs
    }
    servers = (
        Service(
            name="prefect",
            command=(*python, "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(state.prefect_port)),
            environment=service_environment(folder, prefect),
            address=state.prefect_url,
            answers=lambda: _is_healthy(f"{state.prefect_url}/api/health"),
            port=state.prefect_port,
        ),
        Service(
            name="mlflow",
            command=(
                *(*python, "mlflow", "server", "--host", "127.0.0.1", "--port", str(state.mlflow_port)),
                *("--app-name", "basic-auth", "--workers", "1" if state.database == "sqlite" else "2"),
                *("--backend-store-uri", _database(folder, state, "mlflow")),
                *("--artifacts-destination", str(folder / "mlflow" / "artifacts")),
            ),
            environment=service_environment(folder, mlflow),
            address=state.mlflow_url,
            answers=lambda: _is_healthy(f"{state.mlflow_url}/health"),
            port=state.mlflow_port,
        ),
    )
    return servers, tuple(
        Service(
            name=f"worker-{kind}",
            command=(
                *(*python, "prefect", "worker", "start", "--type", "process", "--pool", pool),
                *("--name", f"worker-{kind}-{platform.node()}", "--limit", str(state.limit)),
            ),
            # The worker gives its environment to the flow runs.
            environment=service_environment(folder, {"TRTOPS_HOME": str(folder.parent), **client_environment(folder)}),
            address=pool,
            answers=lambda kind=kind: "' started!" in _file(folder, f"worker-{kind}", "log").read_text(),  # type: ignore[misc]
        )
        for kind, pool in POOLS.items()
        if kind == "cpu" or state.gpu
    )


def main_process(folder: Path, name: str) -> psutil.Process | None:
    """The process of a service, if it runs: the same one, not a later one with its id."""
    try:
        process = psutil.Process(int(_file(folder, name, "pid").read_text()))
        ours = process.environ().get(SERVICE) == f"{folder}/{name}"
        return process if ours and process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, psutil.Error):
        return None


def all_processes(folder: Path, name: str) -> list[psutil.Process]:
    """The running processes of a service, with all that they started."""
    running = psutil.process_iter(["environ"])
    return [process for process in running if (process.info["environ"] or {}).get(SERVICE) == f"{folder}/{name}"]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder, which is created, closed to other users."""
    try:
        for each in (folder, folder / "logs", folder / "prefect", folder / "mlflow"):
            each.mkdir(parents=True, exist_ok=True)
            each.chmod(0o700)
    except OSError as exc:
        raise errors.ConfigError(f"{exc.filename}: {exc.strerror}. Set TRTOPS_HOME to another folder.") from exc
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise errors.ConfigError(f"Another command is starting or ending the servers of {folder}.") from None


def _start(service: Service, folder: Path) -> None:
    if service.port is not None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", service.port))
            except OSError as exc:
                raise errors.ConfigError(
                    f"Port {service.port} for {service.name} cannot be used: {exc.strerror}. Choose another: "
                    f"--{service.name}-port N ({service.name.upper()}_PORT=N make up); 0 takes a free one."
                ) from exc
    log_file = _file(folder, service.name, "log")
    if log_file.exists():
        log_file.replace(log_file.with_suffix(".log.1"))
    with open(os.open(log_file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as output:
        process = subprocess.Popen(
            service.command,
            env={**service.environment, SERVICE: f"{folder}/{service.name}"},
            cwd=folder / "prefect",  # Python searches modules there: no scripts of users
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal does not reach it
        )
    _popens.append(process)
    _file(folder, service.name, "pid").write_text(str(process.pid))
    # The kernel shows the environment of a process a moment after its start.
    while main_process(folder, service.name) is None and process.poll() is None:
        time.sleep(0.01)


def _wait_for(service: Service, folder: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    problem = "ended as soon as it was started"
    while main_process(folder, service.name) is not None:
        if service.answers():
            return
        if time.monotonic() > deadline:
            problem = f"did not answer within {seconds:.0f} s"
            break
        time.sleep(_POLL_SECONDS)
    file = _file(folder, service.name, "log")
    raise errors.ConfigError(f"{service.name} {problem}. The end of {file}:\n{_end_of(file) or '(it wrote nothing)'}")


def _end(folder: Path, names: Sequence[str], progress: Callable[[str], None]) -> None:
    """End some of the services, workers first: they need the servers to end well."""
    for name in sorted(names, key=lambda name: not name.startswith("worker-")):
        progress(f"Ending {name} ...")
        _stop(folder, name)
        _file(folder, name, "pid").unlink(missing_ok=True)


def _stop(folder: Path, name: str) -> None:
    """End a process and all that it started, and wait until they are gone."""
    everything, process = all_processes(folder, name), main_process(folder, name)
    main = [] if process is None else [process]
    # Prefect's worker kills its flow runs when it ends, without a word to the server. If they are asked first, they
    # report that they crashed and close their runs.
    runs = [child for worker in main for child in worker.children()] if name.startswith("worker-") else []
    for processes, seconds in ((runs, _STOP_SECONDS), (main, _STOP_SECONDS), (everything, _KILL_SECONDS)):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        psutil.wait_procs(processes, timeout=seconds)
    while left := all_processes(folder, name):  # also those that were started meanwhile
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=_KILL_SECONDS)


def _started(folder: Path) -> list[str]:
    """The services that were started and not ended."""
    return sorted(file.stem for file in (folder / "logs").glob("*.pid"))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _file(folder: Path, name: str, kind: str) -> Path:
    return folder / "logs" / f"{name}.{kind}"


def _end_of(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    return "\n".join(line for line in lines[-15:] if line.strip())


def _database(folder: Path, state: TeamState, name: str, driver: str = "psycopg") -> str:
    """The address of a database; its driver is named, since the default one depends on SQLAlchemy's release."""
    if state.database == "sqlite":
        return f"sqlite:///{folder}/mlflow/{name}.db"
    return urllib.parse.urlsplit(state.database)._replace(scheme=f"postgresql+{driver}", path=f"/{name}").geturl()


def _write_mlflow_config(folder: Path, state: TeamState, passwords: Passwords) -> None:
    """Write the administrator's account and the address of the users' database for the MLflow server."""
    config = configparser.ConfigParser(interpolation=None)
    config["mlflow"] = {
        "default_permission": "EDIT",  # members of a team resume each other's runs
        "database_uri": _database(folder, state, "mlflow_auth"),
        "admin_username": passwords.mlflow_user,
        "admin_password": passwords.mlflow_password,
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
        "auth_cache_ttl_seconds": "60",  # without it, each request costs a password hash: tens of milliseconds
    }
    file = os.open(folder / "mlflow" / "basic-auth.ini", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(file, "w", encoding="utf-8") as out:
        config.write(out)


def _is_healthy(url: str) -> bool:
    try:
        without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with without_proxy.open(url, timeout=_ANSWER_SECONDS) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False
