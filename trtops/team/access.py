"""How programs reach a team's servers: what their environment has to say, and where the passwords are."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from trtops import errors
from trtops.team.config import TeamState
from trtops.team.folder import TeamFolder
from trtops.team.passwords import Passwords, read_passwords

PREFECT_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "trtops",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # No result of ours is persisted, but Prefect writes the exception of a failed flow in any case, by default pickled.
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
}
"""What Prefect is told wherever trtops starts it: no telemetry, our log lines with its own, no pickle."""

_OTHERS = ("PREFECT_API_", "PREFECT_PROFILE", "MLFLOW_", "PG", "TRTOPS_CREDENTIALS")
"""Beginnings of variables of other servers, which would lead ours, or their database's clients, astray."""


def service_environment(folder: TeamFolder, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of one of the team's processes: this one's, without what is about other servers.

    Args:
        folder: The team's folder.
        more: What it has to have in it.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
    ours |= PREFECT_SETTINGS | {"PREFECT_HOME": str(folder.prefect), "MLFLOW_DISABLE_TELEMETRY": "true"}
    return ours | _around_proxies(ours) | dict(more)


def worker_environment(folder: TeamFolder, state: TeamState, passwords: Passwords) -> dict[str, str]:
    """What a worker, and each flow run that it starts, has to have in its environment to reach the servers.

    Prefect takes its password from the environment alone. MLflow's stays in its file, which is only named here.
    """
    return _server_addresses(folder, state) | {
        "PREFECT_API_AUTH_STRING": passwords.prefect_auth,
        "TRTOPS_HOME": str(folder.root.parent),
    }


def client_environment(folder: TeamFolder | None = None) -> dict[str, str]:
    """What a process of this machine needs in its environment to reach the servers; to be kept to itself.

    Args:
        folder: The team's folder; the default one unless given.

    Raises:
        ConfigError: If there are none.
    """
    folder = TeamFolder.default() if folder is None else folder
    state = _state_of_team(folder)
    return _server_addresses(folder, state) | {"PREFECT_API_AUTH_STRING": read_passwords(folder.passwords).prefect_auth}


def shell_lines(folder: TeamFolder) -> str:
    """The same as lines for a shell, which read the password and do not have it in them.

    Raises:
        ConfigError: If there are no servers.
    """
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in _server_addresses(folder, _state_of_team(folder)).items()
    ]
    command = shlex.join(["trtops", "team", "password", "prefect", "--root", str(folder.root.parent)])
    return "\n".join([*lines, f'export PREFECT_API_AUTH_STRING="$({command})"'])


def password(folder: TeamFolder, server: str) -> str:
    """User and password of ``mlflow`` or ``prefect``, as ``user:password``.

    Raises:
        ConfigError: If there are none.
    """
    found = read_passwords(folder.passwords)
    return found.prefect_auth if server == "prefect" else f"{found.mlflow_user}:{found.mlflow_password}"


def _state_of_team(folder: TeamFolder) -> TeamState:
    state = folder.read()
    if state is None:
        raise errors.ConfigError(f"No servers were started for {folder.root.parent}. Start them: trtops team up")
    return state


def _server_addresses(folder: TeamFolder, state: TeamState) -> dict[str, str]:
    return {
        "PREFECT_API_URL": f"{state.prefect_url}/api",
        "PREFECT_HOME": str(folder.prefect),  # else Prefect makes one in the home directory
        "MLFLOW_TRACKING_URI": state.mlflow_url,
        "TRTOPS_CREDENTIALS": str(folder.passwords),
        **_around_proxies(os.environ),
    }


def _around_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """What keeps requests to this machine from going to a proxy, where one is named."""
    if not any(name.lower() in ("http_proxy", "all_proxy") for name in environment):
        return {}
    listed = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    value = ",".join(filter(None, (listed, "127.0.0.1", "localhost")))
    return {"NO_PROXY": value, "no_proxy": value}
