"""The verbs: start what is not up, end what was started, say what is there."""

from __future__ import annotations

import itertools
import logging
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trtops import errors
from trtops.team import processes
from trtops.team.config import Database, ServiceStatus, Started, TeamConfig, TeamState, TeamStatus
from trtops.team.folder import TeamFolder
from trtops.team.passwords import Passwords, ensure_passwords
from trtops.team.postgres import Postgres, find_postgres
from trtops.team.services import Service, stages

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.25


def up(
    config: TeamConfig | None = None,
    *,
    folder: TeamFolder | None = None,
    progress: Callable[[str], None] = log.info,
) -> TeamStatus:
    """Start the servers and workers that are not up, and wait until all answer.

    Args:
        config: Ports and numbers; as the last time, or the defaults, unless given.
        folder: The team's folder; ``team`` in the default store's folder unless given.
        progress: Told of each step in a line.

    Returns:
        What is up.

    Raises:
        ConfigError: If one cannot be started, dies, or does not answer in time; the message has the end of its log. What
            this call had started is ended again.
        BackendUnavailableError: If PostgreSQL is asked for and cannot be used.
    """
    config = TeamConfig() if config is None else config
    folder = TeamFolder.default() if folder is None else folder
    if not Path("/proc/self/stat").exists():
        raise errors.ConfigError("The servers are started and ended by what Linux says in /proc, which is not here.")
    with folder.locked():
        passwords = ensure_passwords(folder.passwords)
        state, postgres = _decide_state(config, folder, progress)
        begun: list[Started] = []
        try:
            for stage in stages(folder, state, passwords, postgres):
                for service in stage:
                    state = _ensure_begun(service, folder, state, begun, progress)
                for service in stage:
                    _wait_for(service, state, config.wait_seconds)
                    service.after()
        except BaseException as exc:
            _end_processes(folder, state, begun)
            if isinstance(exc, errors.ConfigError):
                raise errors.ConfigError(passwords.hide(str(exc))) from None
            raise
    return status(folder)


def down(*, folder: TeamFolder | None = None, progress: Callable[[str], None] = log.info) -> TeamStatus:
    """End all that :func:`up` started, workers first. Flow runs under way are ended with their worker.

    Args:
        folder: The team's folder; ``team`` in the default store's folder unless given.
        progress: Told of each step in a line.

    Returns:
        What is left: nothing.
    """
    folder = TeamFolder.default() if folder is None else folder
    if folder.read() is not None:
        with folder.locked():
            state = folder.read()
            if state is not None:
                _end_processes(folder, state, state.services, progress)
    return status(folder)


def status(folder: TeamFolder | None = None) -> TeamStatus:
    """What is up, where, and since when. Starts nothing."""
    folder = TeamFolder.default() if folder is None else folder
    state = folder.read()
    if state is None:
        return TeamStatus(folder=str(folder.root), database="", services=())
    passwords = ensure_passwords(folder.passwords)
    postgres = _postgres_of(folder) if state.database == "postgresql" else None
    known = {started.name: started for started in state.services}
    every = itertools.chain.from_iterable(stages(folder, state, passwords, postgres))
    return TeamStatus(
        folder=str(folder.root),
        database=state.database,
        services=tuple(_look_at(service, known.get(service.name), passwords) for service in every),
    )


def _decide_state(
    config: TeamConfig, folder: TeamFolder, progress: Callable[[str], None]
) -> tuple[TeamState, Postgres | None]:
    """Ports, numbers and database: what is asked for, else what was, else the defaults."""
    before = folder.read()
    database, postgres = _decide_database(config.database, before, folder, progress)
    state = TeamState(
        prefect_port=_free_port(config.prefect_port, before.prefect_port if before else 4200),
        mlflow_port=_free_port(config.mlflow_port, before.mlflow_port if before else 5000),
        database=database,
        limit=config.limit or (before.limit if before else 2),
        gpu=config.gpu if config.gpu is not None else before.gpu if before else _has_gpu(),
        services=before.services if before else (),
    )
    if before is not None and any(processes.is_alive(started.owner) for started in before.services):
        changed = [n for n in ("prefect_port", "mlflow_port", "limit") if getattr(state, n) != getattr(before, n)]
        if changed:
            raise errors.ConfigError(
                f"The servers are up with another {' and '.join(changed)}. First: trtops team down"
            )
    return state, postgres


def _decide_database(
    asked: Database | None, before: TeamState | None, folder: TeamFolder, progress: Callable[[str], None]
) -> tuple[Database, Postgres | None]:
    if before is not None and asked not in (None, before.database):
        raise errors.ConfigError(
            f"The data of these servers are in {before.database}. For {asked}, start others in another folder (--root)."
        )
    wanted = asked if before is None else before.database
    if wanted == "sqlite":
        return "sqlite", None
    try:
        return "postgresql", find_postgres(folder.postgres)
    except errors.BackendUnavailableError as exc:
        if wanted == "postgresql":
            raise
        progress(f"SQLite is used for all data. {exc}")
        return "sqlite", None


def _postgres_of(folder: TeamFolder) -> Postgres:
    """The cluster as far as it must be known to look at it."""
    try:
        return find_postgres(folder.postgres)
    except errors.BackendUnavailableError:
        return Postgres(programs=Path("/nowhere"), folder=folder.postgres, user=None)


def _free_port(asked: int | None, otherwise: int) -> int:
    if asked is None:
        return otherwise
    if asked:
        return asked
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _ensure_begun(
    service: Service, folder: TeamFolder, state: TeamState, begun: list[Started], progress: Callable[[str], None]
) -> TeamState:
    """Start a process unless it is there; returns the state with it, which is written down at once."""
    known = _started_service(service, state)
    if known is not None and processes.is_alive(known.owner):
        progress(f"{service.name} is up already.")
        return state
    if known is not None:
        _stop_process(known)  # what a dead one has left
    if service.port is not None:
        _require_free(service.port, service.name)
    progress(f"Starting {service.name} ...")
    service.before()
    log_file, token = folder.log(service.name), secrets.token_hex(16)
    owner = processes.start(
        service.command, service.environment, service.folder, log_file, token=token, user=service.user
    )
    started = Started(
        name=service.name,
        owner=owner,
        since=time.time(),
        address=service.address,
        log=str(log_file),
        token=token,
    )
    begun.append(started)
    state = replace(state, services=(*(s for s in state.services if s.name != service.name), started))
    folder.write(state)
    return state


def _started_service(service: Service, state: TeamState) -> Started | None:
    return next((started for started in state.services if started.name == service.name), None)


def _require_free(port: int, name: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            raise errors.ConfigError(
                f"Port {port} for {name} cannot be used: {exc.strerror}. Choose another: --{name}-port N "
                f"({name.upper()}_PORT=N make up); 0 takes a free one."
            ) from exc


def _wait_for(service: Service, state: TeamState, seconds: float) -> None:
    started = _started_service(service, state)
    assert started is not None
    deadline = time.monotonic() + seconds
    while True:
        if not processes.is_alive(started.owner):
            what = "ended as soon as it was started"
        elif service.answers(started.since):
            return
        elif time.monotonic() > deadline:
            what = f"did not answer within {seconds:.0f} s"
        else:
            time.sleep(_POLL_SECONDS)
            continue
        lines = processes.last_lines(Path(started.log)) or "(it wrote nothing)"
        raise errors.ConfigError(f"{service.name} {what}. The end of {started.log}:\n{lines}")


def _end_processes(
    folder: TeamFolder, state: TeamState, which: Sequence[Started], progress: Callable[[str], None] = log.info
) -> None:
    """End some of the processes, and forget each once it is gone."""
    for started in sorted(which, key=_turn_to_end):
        progress(f"Ending {started.name} ...")
        _stop_process(started)
        state = replace(state, services=tuple(s for s in state.services if s != started))
        folder.write(state)


def _turn_to_end(started: Started) -> int:
    """Workers first, which need the servers to end well; the database last, which these need."""
    return 0 if started.name.startswith("worker-") else 2 if started.name == "postgres" else 1


def _stop_process(started: Started) -> None:
    # To PostgreSQL SIGTERM says to wait until all clients have gone by themselves; SIGINT, to close their connections.
    by = signal.SIGINT if started.name == "postgres" else signal.SIGTERM
    # Prefect's worker kills its flow runs when it ends, without a word to the server; asked themselves, they say that
    # they crashed and close what they had open.
    processes.stop(started.owner, started.token, by=by, children_first=started.name.startswith("worker-"))


def _look_at(service: Service, started: Started | None, passwords: Passwords) -> ServiceStatus:
    if started is None:
        return ServiceStatus(name=service.name, state="down")
    alive = processes.is_alive(started.owner)
    answers = alive and service.answers(started.since)
    return ServiceStatus(
        name=service.name,
        state="up" if answers else "not answering" if alive else "dead",
        address=started.address,
        since=started.since,
        pid=started.owner.pid if alive else None,
        log=started.log,
        last_words="" if answers else passwords.hide(processes.last_lines(Path(started.log))),
    )
