"""Processes that outlive the command which starts them, found again by id and start time, and ended by these alone.

Each carries a token in its environment, which everything it starts inherits: MLflow's server has worker processes, and a
Prefect worker one for each flow run, in a session of its own. By the token they are found even when what started them is gone.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.tracking import owner
from trtops.tracking.owner import Owner

TOKEN = "TRTOPS_TEAM_TOKEN"
"""The environment variable with the token."""

_LOG_BYTES = 10 << 20
_LAST_LINES = 15
_LAST_BYTES = 1 << 14
_POLL_SECONDS = 0.1
_KILL_SECONDS = 5.0
_GONE_SECONDS = 60.0  # for what was killed; it takes a busy machine a moment

_started: list[subprocess.Popen[bytes]] = []  # kept, so that those which end before this process are collected


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    *,
    token: str,
    user: str | None = None,
) -> Owner:
    """Start a process that stays when this one ends.

    Args:
        command: The program and its arguments.
        environment: All of its environment, but for the token.
        folder: Where it is started; not where scripts lie, since Python would import them.
        log: Where it writes; what is there is kept, up to some size.
        token: Random text, by which it and what it starts are found again.
        user: Who it runs as; only root may say so.

    Raises:
        ConfigError: If it cannot be started.
    """
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    try:
        with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
            process = subprocess.Popen(
                command,
                env={**environment, TOKEN: token},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **as_user(user),
            )
    except OSError as exc:
        raise errors.ConfigError(f"{command[0]} cannot be started: {exc}.") from exc
    _started.append(process)
    return owner.of(process.pid)


def as_user(user: str | None) -> dict[str, Any]:
    """Arguments of ``subprocess`` by which root starts a process as another user; none for None."""
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def is_alive(process: Owner) -> bool:
    """Whether a process is still there: the same one, not a later one with its id."""
    for started in _started:
        started.poll()
    return process.machine == owner.current().machine and not owner.is_gone(process)


def stop(
    process: Owner,
    token: str,
    *,
    by: signal.Signals = signal.SIGTERM,
    children_first: bool = False,
    patience: float = 30.0,
) -> None:
    """End a process and what it started, and wait until they are gone.

    Args:
        process: The process; if it is gone, only what it left is ended.
        token: What :func:`start` was given.
        by: The signal that asks it to end.
        children_first: Whether its own children are asked to end before it is.
        patience: Seconds that each gets to do so.

    Raises:
        ConfigError: If it was started on another machine, or by another user.
    """
    if process.machine != owner.current().machine:
        raise errors.ConfigError(f"It runs on another machine, {process.host}. End it there.")
    if is_alive(process):
        children = [pid for pid in _with_token(token) if _parent_of(pid) == process.pid] if children_first else []
        for child in children:
            _send_signal(child, signal.SIGTERM)
        _wait_until(lambda: not set(children) & set(_with_token(token)), patience)
        _send_signal(process.pid, by)
        _wait_until(lambda: not is_alive(process), patience)
    for harder, seconds in ((signal.SIGTERM, _KILL_SECONDS), (signal.SIGKILL, _GONE_SECONDS)):
        left = _with_token(token)
        for pid in left:
            _send_signal(pid, harder)
        if left:
            _wait_until(lambda: not _with_token(token), seconds)
    # One that dies has no environment any more, by which it is found, and is there for a moment still.
    _wait_until(lambda: not is_alive(process), _GONE_SECONDS)


def last_lines(log: Path) -> str:
    """The end of a log file; empty if there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines[-_LAST_LINES:] if line.strip())


def _with_token(token: str) -> list[int]:
    """Ids of living processes that have a token in their environment."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue  # it ended meanwhile, or is another user's
        if wanted in environment and wanted in environment.split(b"\0"):
            found.append(int(folder.name))
    return found


def _parent_of(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[1])
    except (OSError, IndexError, ValueError):
        return None


def _send_signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as exc:
        raise errors.ConfigError(f"Process {pid} is another user's: end it as the user who started it.") from exc


def _wait_until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
