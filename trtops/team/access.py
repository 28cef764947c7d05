"""How programs reach the servers of a team: their passwords and environment variables."""

from __future__ import annotations

import configparser
import os
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtops import errors
from trtops.team.state import TeamFolder, TeamState

PREFECT_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "trtops",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # Our results are not persisted, but Prefect always writes the exception of a failed flow, by default pickled.
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
}
"""Settings of every Prefect that trtops starts: no telemetry, our log lines with its own, no pickle."""

_OTHER_SERVERS = ("PREFECT_API_", "PREFECT_PROFILE", "MLFLOW_", "TRTOPS_CREDENTIALS")


@dataclass(frozen=True, kw_only=True)
class Passwords:
    """The passwords of the servers; ``repr`` does not show them.

    Attributes:
        mlflow_user: The administrator of the MLflow server.
        mlflow_password: The administrator's password.
        mlflow_secret_key: The key that the MLflow server signs its forms with.
        prefect_auth: User and password of Prefect's API, as ``user:password``.
    """

    mlflow_user: str
    mlflow_password: str = field(repr=False)
    mlflow_secret_key: str = field(repr=False)
    prefect_auth: str = field(repr=False)

    @classmethod
    def ensure(cls, file: Path) -> Passwords:
        """Read the passwords from a file, which is created with mode 600 if it is missing.

        The file has the form of MLflow's own credentials file, so that ``TRTOPS_CREDENTIALS`` may name it.
        """
        made = configparser.ConfigParser(interpolation=None)
        made["mlflow"] = {
            "mlflow_tracking_username": "admin",
            "mlflow_tracking_password": secrets.token_urlsafe(24),
            "server_secret_key": secrets.token_urlsafe(32),
        }
        made["prefect"] = {"auth_string": f"trtops:{secrets.token_urlsafe(24)}"}
        try:
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
                made.write(out)
        except FileExistsError:
            pass
        return cls.read(file)

    @classmethod
    def read(cls, file: Path) -> Passwords:
        """Read the passwords from a file.

        Raises:
            ConfigError: If it is missing, others may read it, or it lacks an entry.
        """
        parser = configparser.ConfigParser(interpolation=None)
        try:
            mode = file.stat().st_mode & 0o777
            if mode & 0o077:
                raise errors.ConfigError(f"{file} has mode {mode:o}: others may read it. Run: chmod 600 {file}")
            parser.read_string(file.read_text(encoding="utf-8"))
            return cls(
                mlflow_user=parser["mlflow"]["mlflow_tracking_username"],
                mlflow_password=parser["mlflow"]["mlflow_tracking_password"],
                mlflow_secret_key=parser["mlflow"]["server_secret_key"],
                prefect_auth=parser["prefect"]["auth_string"],
            )
        except OSError as exc:
            raise errors.ConfigError(f"Passwords {file}: {exc.strerror}. `trtops team up` creates it.") from exc
        except (configparser.Error, KeyError) as exc:
            raise errors.ConfigError(
                f"{file} is damaged or lacks an entry ({exc}). Correct it, or delete it to get new passwords at the next "
                "start; an MLflow server that was started before keeps the old one."
            ) from None

    def hide(self, text: str) -> str:
        """Replace the passwords in a text."""
        password = self.prefect_auth.partition(":")[2]
        for secret in (self.prefect_auth, password, self.mlflow_password, self.mlflow_secret_key):
            text = text.replace(secret, "***")
        return text


def service_environment(folder: TeamFolder, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server or worker: this process's, without variables of other servers, with ``extra``."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(_OTHER_SERVERS)}
    ours |= PREFECT_SETTINGS | {"PREFECT_HOME": str(folder.prefect), "MLFLOW_DISABLE_TELEMETRY": "true"}
    return ours | _without_proxy() | dict(extra)


def server_addresses(folder: TeamFolder, state: TeamState) -> dict[str, str]:
    """The variables that lead to the servers. The MLflow password stays in its file, which is only named."""
    return {
        "PREFECT_API_URL": f"{state.prefect_url}/api",
        "PREFECT_HOME": str(folder.prefect),  # Prefect would create one in the home directory
        "MLFLOW_TRACKING_URI": state.mlflow_url,
        "TRTOPS_CREDENTIALS": str(folder.passwords),
        **_without_proxy(),
    }


def client_environment(folder: TeamFolder | None = None) -> dict[str, str]:
    """The variables, with Prefect's password, that a process of this machine needs to use the servers.

    Args:
        folder: The team's folder; the default one unless given.

    Raises:
        ConfigError: If no servers were started.
    """
    folder = TeamFolder.default() if folder is None else folder
    addresses = server_addresses(folder, _state_of_team(folder))
    return addresses | {"PREFECT_API_AUTH_STRING": Passwords.read(folder.passwords).prefect_auth}


def shell_lines(folder: TeamFolder) -> str:
    """The same as lines for a shell, which read Prefect's password instead of containing it.

    Raises:
        ConfigError: If no servers were started.
    """
    addresses = server_addresses(folder, _state_of_team(folder))
    lines = [f"export {name}={shlex.quote(value)}" for name, value in addresses.items()]
    command = shlex.join(["trtops", "team", "password", "prefect", "--root", str(folder.root.parent)])
    return "\n".join([*lines, f'export PREFECT_API_AUTH_STRING="$({command})"'])


def _state_of_team(folder: TeamFolder) -> TeamState:
    state = folder.read()
    if state is None:
        raise errors.ConfigError(f"No servers were started for {folder.root.parent}. Start them: trtops team up")
    return state


def _without_proxy() -> dict[str, str]:
    """Variables that keep requests to this machine from a proxy, if the environment names one."""
    if not any(name.lower() in ("http_proxy", "all_proxy") for name in os.environ):
        return {}
    listed = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    value = ",".join(filter(None, (listed, "127.0.0.1", "localhost")))
    return {"NO_PROXY": value, "no_proxy": value}
