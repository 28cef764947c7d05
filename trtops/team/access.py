"""What is stored about the servers of a team, and how programs reach them: ports, passwords, environment variables."""

from __future__ import annotations

import configparser
import os
import secrets
import shlex
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtops import errors
from trtops.record import Record
from trtops.system.files import open_atomically

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

POOLS = {"cpu": "trtops-cpu", "gpu": "trtops-gpu"}
"""Work pools of type "process", by the device of their workers."""

_OTHER_SERVERS = ("PREFECT_API_", "PREFECT_PROFILE", "MLFLOW_", "TRTOPS_CREDENTIALS")


@dataclass(frozen=True, kw_only=True)
class TeamState(Record):
    """The configuration of the servers."""

    prefect_port: int = 4200
    mlflow_port: int = 5000
    # Or the address of a PostgreSQL server that has the databases prefect, mlflow and mlflow_auth.
    database: str = "sqlite"
    limit: int = 2  # flow runs at a time on a worker
    gpu: bool = field(default_factory=lambda: any(Path("/dev").glob("nvidia[0-9]*")))

    def __post_init__(self) -> None:
        for name, port in (("prefect_port", self.prefect_port), ("mlflow_port", self.mlflow_port)):
            if not 0 <= port < 65536:
                raise errors.ConfigError(f"{name} is {port}; expected 0 to 65535.")
        if self.limit < 1:
            raise errors.ConfigError(f"limit is {self.limit}; expected 1 or more.")
        url = urllib.parse.urlsplit(self.database)
        if self.database != "sqlite" and (url.scheme != "postgresql" or url.password is not None):
            raise errors.ConfigError(
                f"database is {self.database.partition(':')[0]}:...; expected sqlite, or postgresql://user@host "
                "without a password, which belongs into ~/.pgpass."
            )

    @property
    def prefect_url(self) -> str:
        """Address of Prefect's UI; its API is below ``/api``."""
        return f"http://127.0.0.1:{self.prefect_port}"

    @property
    def mlflow_url(self) -> str:
        """Address of MLflow."""
        return f"http://127.0.0.1:{self.mlflow_port}"


def team_folder(store: str | Path | None = None) -> Path:
    """The folder ``team`` in a store's folder: the given one, ``TRTOPS_HOME``, or ``./mlruns``."""
    return Path(store or os.environ.get("TRTOPS_HOME") or "mlruns").resolve() / "team"


def read_state(folder: Path) -> TeamState | None:
    """The stored state; None before the first start."""
    file = folder / "team.json"
    try:
        return TeamState.from_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except errors.FormatError as exc:
        raise errors.FormatError(
            f"{file} cannot be read: {exc} End the processes of {folder} by hand and delete the file."
        ) from None


def write_state(folder: Path, state: TeamState) -> None:
    """Store the state."""
    with open_atomically(folder / "team.json") as file:
        file.write(state.to_json().encode())


@dataclass(frozen=True, kw_only=True)
class Passwords:
    """The passwords of the servers, which ``repr`` does not show.

    They are in a file of mode 600 in the form of MLflow's credentials file, which ``TRTOPS_CREDENTIALS`` can name.
    """

    mlflow_user: str
    mlflow_password: str = field(repr=False)
    mlflow_secret_key: str = field(repr=False)
    prefect_auth: str = field(repr=False)

    @classmethod
    def ensure(cls, folder: Path) -> Passwords:
        """Read the passwords of a team's folder, created on first use; ConfigError if others may read the file."""
        file, config = folder / "passwords.ini", configparser.ConfigParser(interpolation=None)
        try:
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
                config["mlflow"] = {
                    "mlflow_tracking_username": "admin",
                    "mlflow_tracking_password": secrets.token_urlsafe(24),
                    "server_secret_key": secrets.token_urlsafe(32),
                }
                config["prefect"] = {"auth_string": f"trtops:{secrets.token_urlsafe(24)}"}
                config.write(out)
        except FileExistsError:
            pass
        except FileNotFoundError:
            raise errors.ConfigError(f"No servers were started in {folder}. Start them: trtops team up") from None
        if (mode := file.stat().st_mode & 0o777) & 0o077:
            raise errors.ConfigError(f"{file} has mode {mode:o}: others may read it. Run: chmod 600 {file}")
        try:
            config.read_string(file.read_text(encoding="utf-8"))
            return cls(
                mlflow_user=config["mlflow"]["mlflow_tracking_username"],
                mlflow_password=config["mlflow"]["mlflow_tracking_password"],
                mlflow_secret_key=config["mlflow"]["server_secret_key"],
                prefect_auth=config["prefect"]["auth_string"],
            )
        except (configparser.Error, KeyError) as exc:
            raise errors.ConfigError(
                f"{file} is damaged or lacks an entry ({exc}). Correct it, or delete it to get new passwords."
            ) from None

    def hide(self, text: str) -> str:
        """Replace the passwords in a text."""
        for secret in (self.prefect_auth.partition(":")[2], self.mlflow_password, self.mlflow_secret_key):
            text = text.replace(secret, "***")
        return text


def service_environment(folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server or worker: this process's, without variables of other servers, with ``extra``."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(_OTHER_SERVERS)}
    ours |= PREFECT_SETTINGS | {"PREFECT_HOME": str(folder / "prefect"), "MLFLOW_DISABLE_TELEMETRY": "true"}
    return ours | _without_proxy() | dict(extra)


def client_environment(folder: Path | None = None, *, password: bool = True) -> dict[str, str]:
    """The variables that a process of this machine needs to use the servers; ConfigError if none were started.

    MLflow's password stays in its file, while Prefect reads its own from the environment only.
    """
    folder = team_folder() if folder is None else folder
    state = read_state(folder)
    if state is None:
        raise errors.ConfigError(f"No servers were started for {folder.parent}. Start them: trtops team up")
    found = {
        "PREFECT_API_URL": f"{state.prefect_url}/api",
        "PREFECT_HOME": str(folder / "prefect"),  # Prefect would create one in the home directory
        "MLFLOW_TRACKING_URI": state.mlflow_url,
        "TRTOPS_CREDENTIALS": str(folder / "passwords.ini"),
        **_without_proxy(),
    }
    return found | ({"PREFECT_API_AUTH_STRING": Passwords.ensure(folder).prefect_auth} if password else {})


def shell_lines(folder: Path) -> str:
    """The same as lines for a shell, which read Prefect's password instead of containing it."""
    variables = client_environment(folder, password=False)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    command = shlex.join(["trtops", "team", "password", "prefect", "--root", str(folder.parent)])
    return "\n".join([*lines, f'export PREFECT_API_AUTH_STRING="$({command})"'])


def _without_proxy() -> dict[str, str]:
    """Variables that keep requests to this machine from a proxy."""
    listed = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    value = ",".join(filter(None, (listed, "127.0.0.1", "localhost")))
    return {"NO_PROXY": value, "no_proxy": value}
