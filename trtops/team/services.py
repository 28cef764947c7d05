"""What is started: the command line of each process, its environment, and how to tell that it is up."""

from __future__ import annotations

import configparser
import functools
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtops.team.access import service_environment, worker_environment
from trtops.team.api import ANSWER_SECONDS, crash_lost_runs, is_polling, opener
from trtops.team.config import TeamState
from trtops.team.folder import TeamFolder
from trtops.team.passwords import Passwords
from trtops.team.postgres import Postgres


@dataclass(frozen=True, kw_only=True)
class Service:
    """One process to be started.

    Attributes:
        name: Its name, as in :class:`trtops.team.config.Started`.
        command: Its command line; no secrets in it, since every user of the machine can read it.
        environment: All of its environment.
        folder: Where it is started.
        address: Where it answers.
        answers: Whether it does, if it was started at a time in seconds since the epoch.
        before: What has to be done before it is started.
        after: What has to be done once it answers.
        port: Its TCP port, if it has one.
        user: Who it runs as, if not as the caller.
    """

    name: str
    command: list[str]
    environment: Mapping[str, str] = field(repr=False)
    folder: Path
    address: str
    answers: Callable[[float], bool]
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    port: int | None = None
    user: str | None = None


def stages(
    folder: TeamFolder, state: TeamState, passwords: Passwords, postgres: Postgres | None
) -> tuple[tuple[Service, ...], ...]:
    """All processes: those of one stage are started together, once those of the one before answer.

    Args:
        folder: The team's folder.
        state: Ports and numbers.
        passwords: Of the servers.
        postgres: The database cluster; None for SQLite.
    """
    return (
        () if postgres is None else (_database_service(folder, postgres),),
        (_prefect_service(folder, state, passwords, postgres), _mlflow_service(folder, state, passwords, postgres)),
        tuple(_worker_service(folder, state, passwords, name, pool) for name, pool in state.pools.items()),
    )


def _database_service(folder: TeamFolder, postgres: Postgres) -> Service:
    return Service(
        name="postgres",
        command=postgres.command(),
        environment=service_environment(folder, {}),
        folder=Path("/"),
        address=str(postgres.socket_folder),
        answers=lambda since: postgres.answers(),
        before=postgres.make,
        after=postgres.make_databases,
        user=postgres.user,
    )


def _prefect_service(folder: TeamFolder, state: TeamState, passwords: Passwords, postgres: Postgres | None) -> Service:
    own = {
        "PREFECT_SERVER_API_AUTH_STRING": passwords.prefect_auth,
        # Its services call their own API, and its UI is told the address, which on another port it would not guess.
        "PREFECT_API_AUTH_STRING": passwords.prefect_auth,
        "PREFECT_API_URL": f"{state.prefect_url}/api",
        "PREFECT_SERVER_UI_API_URL": f"{state.prefect_url}/api",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{state.prefect_url},http://localhost:{state.prefect_port}",
    }
    if postgres is not None:
        own["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = postgres.url("asyncpg", "prefect")
    return Service(
        name="prefect",
        command=_python_command("prefect", "server", "start", "--host", "127.0.0.1", "--port", str(state.prefect_port)),
        environment=service_environment(folder, own),
        folder=folder.prefect,
        address=state.prefect_url,
        answers=functools.partial(_says_ok, f"{state.prefect_url}/api/health"),
        port=state.prefect_port,
    )


def _mlflow_service(folder: TeamFolder, state: TeamState, passwords: Passwords, postgres: Postgres | None) -> Service:
    config = folder.mlflow / "basic-auth.ini"
    if postgres is None:
        runs, users = f"sqlite:///{folder.mlflow}/mlflow.db", f"sqlite:///{folder.mlflow}/users.db"
    else:
        runs, users = postgres.url("psycopg", "mlflow"), postgres.url("psycopg", "mlflow_auth")
    return Service(
        name="mlflow",
        command=_python_command(
            *("mlflow", "server", "--host", "127.0.0.1", "--port", str(state.mlflow_port)),
            *("--app-name", "basic-auth", "--workers", "1" if postgres is None else "2"),
            *("--backend-store-uri", runs, "--artifacts-destination", str(folder.mlflow / "artifacts")),
        ),
        environment=service_environment(
            folder,
            {
                "MLFLOW_AUTH_CONFIG_PATH": str(config),
                "MLFLOW_FLASK_SERVER_SECRET_KEY": passwords.mlflow_secret_key,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
        ),
        folder=folder.mlflow,
        address=state.mlflow_url,
        answers=functools.partial(_says_ok, f"{state.mlflow_url}/health"),
        before=functools.partial(_write_mlflow_config, config, users, passwords),
        port=state.mlflow_port,
    )


def _worker_service(folder: TeamFolder, state: TeamState, passwords: Passwords, name: str, pool: str) -> Service:
    called = f"{name}-{os.uname().nodename}"
    return Service(
        name=name,
        command=_python_command(
            *("prefect", "worker", "start", "--type", "process", "--pool", pool),
            *("--name", called, "--limit", str(state.limit)),
        ),
        environment=service_environment(folder, worker_environment(folder, state, passwords)),
        folder=folder.prefect,
        address=pool,
        answers=functools.partial(is_polling, state, passwords, pool, called),
        before=functools.partial(crash_lost_runs, state, passwords, pool, called),
    )


def _python_command(*module_and_arguments: str) -> list[str]:
    return [sys.executable, "-m", *module_and_arguments]


def _write_mlflow_config(file: Path, users: str, passwords: Passwords) -> None:
    """Write the server's configuration: who is its administrator, and where users are kept."""
    config = configparser.ConfigParser(interpolation=None)
    config["mlflow"] = {
        # What one member of a team logs, others may go on with.
        "default_permission": "EDIT",
        "database_uri": users,
        "admin_username": passwords.mlflow_user,
        "admin_password": passwords.mlflow_password,
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
        # Else each request costs a password hash, tens of milliseconds.
        "auth_cache_ttl_seconds": "60",
    }
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
        config.write(out)


def _says_ok(url: str, since: float) -> bool:
    try:
        with opener().open(url, timeout=ANSWER_SECONDS) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False
