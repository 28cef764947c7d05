"""Start, end and inspect the servers and workers of a team.

A process is found again by its id (``logs/<name>.pid``) and by a variable in its environment, which everything that it
starts inherits: MLflow's server has worker processes, and a Prefect worker has one process for each flow run, in a
session of its own.
"""

import configparser
import contextlib
import itertools
import logging
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from trtops import errors
from trtops.extras import require
from trtops.record import Record
from trtops.system.files import open_atomically
from trtops.system.processes import TEAM_FOLDER
from trtops.team import access
from trtops.team.access import MLFLOW_USER, TeamState, read_state
from trtops.tracking.check import HealthFinding, server_finding

log = logging.getLogger(__name__)

SERVICE = "TRTOPS_TEAM_SERVICE"  # the environment variable with the team's folder and the name of the service
_ANSWER_SECONDS = 5.0
_STOP_SECONDS = 30.0
_KILL_SECONDS = 5.0
_POLL_SECONDS = 0.25

# A garbage collection closes cursors. In the thread of the server's event loop it would wait for another thread that is
# writing through the same connection, which waits for SQLite's lock, whose holder waits for the event loop: the whole
# server stood still until SQLite's limit of 60 s.
_PREFECT = """
import gc, runpy, sys, threading, time
def collect():
    while True:
        time.sleep(20)
        gc.collect()
gc.disable()
threading.Thread(target=collect, daemon=True).start()
runpy.run_module("prefect", run_name="__main__", alter_sys=True)
"""

# Kept, since Python warns about one that is dropped while its process runs.
_popens: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, kw_only=True)
class Service:
    """A process to be started. Its command line has no secrets, since every user of the machine can read it."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    address: str
    health: str = ""  # path below the address that a server answers; a worker writes to its log that it has started


@dataclass(frozen=True, kw_only=True)
class ServiceStatus(Record):
    """The status of a process."""

    name: str
    state: str  # up, "not answering", "dead" (it ended by itself) or "down" (it was not started, or was ended)
    text: str  # all of it on a line; and the end of the log, if the process does not answer


def up(folder: Path, *, wait_seconds: float = 240.0, **changes: Any) -> tuple[ServiceStatus, ...]:
    """Start missing servers and workers, and wait until all of them answer.

    Args:
        folder: The team's folder.
        wait_seconds: How long to wait for each.
        changes: Fields of :class:`trtops.team.access.TeamState`; None and what is not given stay as at the last start.

    Raises ConfigError if a process cannot be started, ends, or does not answer in time; the message has the end of its
    log. What this call started is ended again.
    """
    require("prefect", "mlflow", "flask_wtf")
    if not hasattr(os, "fork"):
        raise errors.ConfigError("trtops team needs Linux or macOS. Start the servers there, and use them from here.")
    with _locked(folder):
        before = read_state(folder) or TeamState()
        state = replace(before, **{name: value for name, value in changes.items() if value is not None})
        if state != before and any(main_process(folder, name) for name in _started(folder)):
            raise errors.ConfigError("The servers are up with other settings. First: trtops team down")
        with open_atomically(folder / "team.json") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(state.to_json().encode())
        _write_mlflow_config(folder, state)
        begun: list[str] = []
        try:
            for stage in stages(folder, state):
                for service in stage:
                    if main_process(folder, service.name) is not None:
                        log.info("%s is up already.", service.name)
                        continue
                    _stop(folder, service.name)  # the processes that a dead one left
                    log.info("Starting %s ...", service.name)
                    begun.append(service.name)
                    _start(service, folder)
                for service in stage:
                    _wait_for(service, folder, wait_seconds)
        except BaseException:
            _end(folder, begun)
            raise
    return status(folder)


def down(folder: Path) -> tuple[ServiceStatus, ...]:
    """End everything started by :func:`up`, workers first, with their flow runs."""
    if read_state(folder) is not None:
        with _locked(folder):
            _end(folder, _started(folder))
    return status(folder)


def status(folder: Path) -> tuple[ServiceStatus, ...]:
    """The status of all processes; none before the first start. Starts nothing."""
    state = read_state(folder)
    if state is None:
        return ()
    statuses = []
    for service in itertools.chain(*stages(folder, state)):
        name, text = "down", ""
        if service.name in _started(folder):
            process = main_process(folder, service.name)
            name = "dead" if process is None else "up" if _answers(service, folder) else "not answering"
            since = time.localtime(_file(folder, service.name, "pid").stat().st_mtime)
            text = time.strftime(f" {service.address}  since %Y-%m-%d %H:%M:%S", since)
            if name != "up":
                text += f"\n{_end_of_log(folder, service.name)}"
        statuses.append(
            ServiceStatus(name=service.name, state=name, text=f"{service.name:<11} {name:<14}{text}".rstrip())
        )
    return tuple(statuses)


def team_findings() -> Iterator[HealthFinding]:
    """Servers and workers of this machine, and the Prefect server of ``PREFECT_API_URL``. Starts nothing."""
    services, remedy = status(access.team_folder()), "trtops team up"
    down = [f"{service.name} is {service.state}" for service in services if service.state != "up"]
    if not services:
        text = "no servers were started on this machine"
        yield HealthFinding(subject="team", state="none", text=text, remedy=remedy)
    elif down:
        yield HealthFinding(subject="team", state="problem", text="; ".join(down), remedy=remedy)
    else:
        yield HealthFinding(subject="team", state="ok", text=f"{len(services)} servers and workers are up")
    if address := os.environ.get("PREFECT_API_URL"):
        yield server_finding("Prefect", address, "/health", login=os.environ.get("PREFECT_API_AUTH_STRING", ""))


def stages(folder: Path, state: TeamState) -> tuple[tuple[Service, ...], ...]:
    """All processes; those of a stage are started together, once those of the previous stage answer."""
    python = (sys.executable, "-m")
    prefect = {
        "PREFECT_SERVER_API_AUTH_STRING": state.prefect_auth,
        # The server's own services call its API.
        "PREFECT_API_AUTH_STRING": state.prefect_auth,
        "PREFECT_API_URL": f"{state.prefect_url}/api",
        # Its UI would use the default port.
        "PREFECT_SERVER_UI_API_URL": f"{state.prefect_url}/api",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{state.prefect_url},http://localhost:{state.prefect_port}",
    }
    if state.database != "sqlite":
        prefect["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = _database(folder, state, "prefect", "asyncpg")
    mlflow = {
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "passwords.ini"),
        # For its sign-up form; all of its processes need the same one.
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_urlsafe(32),
        # It costs 1 GB and 10 s, and trtops has no such jobs.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    servers = (
        Service(
            name="prefect",
            command=(
                *(sys.executable, "-c", _PREFECT, "server", "start"),
                *("--host", "127.0.0.1", "--port", str(state.prefect_port)),
            ),
            environment=access.service_environment(folder, prefect),
            address=state.prefect_url,
            health="/api/health",
        ),
        Service(
            name="mlflow",
            command=(
                *(*python, "mlflow", "server", "--host", "127.0.0.1", "--port", str(state.mlflow_port)),
                *("--app-name", "basic-auth", "--workers", "1" if state.database == "sqlite" else "2"),
                *("--backend-store-uri", _database(folder, state, "mlflow")),
                *("--artifacts-destination", str(folder / "mlflow" / "artifacts")),
            ),
            environment=access.service_environment(folder, mlflow),
            address=state.mlflow_url,
            health="/health",
        ),
    )
    # A flow run that waits for a GPU occupies its slot.
    slots = {"cpu": state.limit, "gpu": len([*Path("/dev").glob("nvidia[0-9]*")]) or 1}
    return servers, tuple(
        Service(
            name=f"worker-{kind}",
            command=(
                *(*python, "prefect", "worker", "start", "--type", "process", "--pool", pool),
                *("--name", f"worker-{kind}-{platform.node()}", "--limit", str(slots[kind])),
            ),
            # The worker gives its environment to the flow runs.
            environment=access.service_environment(
                folder, {"TRTOPS_HOME": str(folder.parent), **access.client_environment(folder)}
            ),
            address=pool,
        )
        for kind, pool in access.POOLS.items()
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
    """The running processes of a service, with all their descendants."""
    running = psutil.process_iter(["environ"])
    return [process for process in running if (process.info["environ"] or {}).get(SERVICE) == f"{folder}/{name}"]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder; it is created, closed to other users."""
    try:
        for directory in (folder, folder / "logs", folder / "prefect", folder / "mlflow"):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o700)
    except OSError as exc:
        raise errors.ConfigError(f"{exc.filename}: {exc.strerror}. Set TRTOPS_HOME to another folder.") from exc
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise errors.ConfigError(f"Another command is starting or ending the servers of {folder}.") from None


def _start(service: Service, folder: Path) -> None:
    if service.health:
        with socket.socket() as probe:
            # Connections of a server that has just ended do not block its port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", urllib.parse.urlsplit(service.address).port or 80))
            except OSError as exc:
                # A foreign server on this port would answer, and ours would seem to be up.
                raise errors.ConfigError(
                    f"{service.address} for {service.name} cannot be used: {exc.strerror}. Choose another port: "
                    f"--{service.name}-port N ({service.name.upper()}_PORT=N make up)."
                ) from exc
    log_file = _file(folder, service.name, "log")
    if log_file.exists():
        log_file.replace(log_file.with_suffix(".log.1"))
    # Prefect's worker and its flow runs leave temporary folders when they are killed.
    temporary = tempfile.mkdtemp(prefix=f"{TEAM_FOLDER}{service.name}-")
    _file(folder, service.name, "tmp").write_text(temporary)
    with open(os.open(log_file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as output:
        process = subprocess.Popen(
            service.command,
            env={**service.environment, "TMPDIR": temporary, SERVICE: f"{folder}/{service.name}"},
            # Python searches modules there: no scripts of users.
            cwd=folder / "prefect",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal does not reach it.
            start_new_session=True,
        )
    _popens.append(process)
    _file(folder, service.name, "pid").write_text(str(process.pid))
    # The kernel shows the environment of a process a moment after its start.
    while main_process(folder, service.name) is None and process.poll() is None:
        time.sleep(0.01)


def _answers(service: Service, folder: Path) -> bool:
    if not service.health:
        return "' started!" in _file(folder, service.name, "log").read_text()
    try:
        without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with without_proxy.open(service.address + service.health, timeout=_ANSWER_SECONDS) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def _wait_for(service: Service, folder: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    problem = "ended as soon as it was started"
    while main_process(folder, service.name) is not None:
        if _answers(service, folder):
            return
        if time.monotonic() > deadline:
            problem = f"did not answer within {seconds:.0f} s"
            break
        time.sleep(_POLL_SECONDS)
    file, end = _file(folder, service.name, "log"), _end_of_log(folder, service.name)
    raise errors.ConfigError(f"{service.name} {problem}. The end of {file}:\n{end or '(it wrote nothing)'}")


def _end(folder: Path, names: Sequence[str]) -> None:
    """End some of the services, workers first: they need the servers to end well."""
    for name in sorted(names, key=lambda name: not name.startswith("worker-")):
        log.info("Ending %s ...", name)
        _stop(folder, name)
        _file(folder, name, "pid").unlink(missing_ok=True)


def _stop(folder: Path, name: str) -> None:
    """End a process and all its descendants, and wait until they are gone."""
    everything, process = all_processes(folder, name), main_process(folder, name)
    main = [] if process is None else [process]
    # Prefect's worker kills its flow runs when it ends, without a word to the server. If they are asked first, they
    # report that they crashed and close their runs.
    runs = process.children() if process is not None and name.startswith("worker-") else []
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
    if (file := _file(folder, name, "tmp")).exists():
        shutil.rmtree(file.read_text(), ignore_errors=True)
        file.unlink()


def _started(folder: Path) -> list[str]:
    return sorted(file.stem for file in (folder / "logs").glob("*.pid"))


def _file(folder: Path, name: str, kind: str) -> Path:
    return folder / "logs" / f"{name}.{kind}"


def _end_of_log(folder: Path, name: str) -> str:
    file = _file(folder, name, "log")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    # A server that fails may print its settings.
    return access.started_state(folder).hide("\n".join(line for line in lines[-15:] if line.strip()))


def _database(folder: Path, state: TeamState, name: str, driver: str = "psycopg") -> str:
    """The address of a database; its driver is named, since the default one depends on SQLAlchemy's release."""
    if state.database == "sqlite":
        return f"sqlite:///{folder}/mlflow/{name}.db"
    return urllib.parse.urlsplit(state.database)._replace(scheme=f"postgresql+{driver}", path=f"/{name}").geturl()


def _write_mlflow_config(folder: Path, state: TeamState) -> None:
    """Write the settings of the MLflow server's users, and the administrator's account as clients read it."""
    config = configparser.ConfigParser(interpolation=None)
    config["mlflow"] = {
        # Members of a team resume each other's runs.
        "default_permission": "EDIT",
        "database_uri": _database(folder, state, "mlflow_auth"),
        "admin_username": MLFLOW_USER,
        "admin_password": state.mlflow_password,
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
        # Without it, each request costs a password hash: tens of milliseconds.
        "auth_cache_ttl_seconds": "60",
        "mlflow_tracking_username": MLFLOW_USER,
        "mlflow_tracking_password": state.mlflow_password,
    }
    file = os.open(folder / "passwords.ini", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(file, "w", encoding="utf-8") as out:
        config.write(out)
