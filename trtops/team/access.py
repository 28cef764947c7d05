"""What is stored about the servers of a team, and how programs reach them: ports, passwords, environment variables."""

import os
import secrets
import shlex
import shutil
import sys
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trtops import errors
from trtops.record import Record

PREFECT_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "trtops",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # Our results are not persisted, but Prefect always writes the exception of a failed flow, by default pickled.
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
    # Prefect's server answers 500 while its database is away, and a proxy 504. Clients try again for a minute.
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500,504",
    # By default a worker asks for work every 10 s, while many flow runs take less, and holds a slot 10 s ahead.
    "PREFECT_WORKER_QUERY_SECONDS": "1",
    "PREFECT_WORKER_PREFETCH_SECONDS": "4",
}
"""Settings of every Prefect that trtops starts: no telemetry, our log lines with its own, no pickle, short waits."""

POOLS = {"cpu": "trtops-cpu", "gpu": "trtops-gpu"}
"""Work pools of type "process", by the device of their workers."""

MLFLOW_USER = "admin"

# Variables of other servers: a worker that has them would log its runs there.
_OTHER_SERVERS = ("PREFECT_API_", "PREFECT_PROFILE", "MLFLOW_", "TRTOPS_CREDENTIALS")


def has_gpu() -> bool:
    """True if this machine has a GPU of NVIDIA."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def program() -> str:
    """How a shell starts trtops; it may not find ``trtops``, which an environment has in its own folder."""
    return "trtops" if shutil.which("trtops") else f"{shlex.quote(sys.executable)} -m trtops.cli"


@dataclass(frozen=True, kw_only=True)
class TeamState(Record):
    """The configuration of the servers, and their passwords (not in ``repr``)."""

    prefect_port: int = 4200
    mlflow_port: int = 5000
    # Or the address of a PostgreSQL server that has the databases prefect, mlflow and mlflow_auth.
    database: str = "sqlite"
    limit: int = 2  # flow runs at a time on the CPU worker
    gpu: bool = field(default_factory=has_gpu)
    prefect_password: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    mlflow_password: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def __post_init__(self) -> None:
        for name, low, high in (("prefect_port", 1, 65535), ("mlflow_port", 1, 65535), ("limit", 1, 1000)):
            if not low <= (value := getattr(self, name)) <= high:
                raise errors.ConfigError(f"{name} is {value}; expected {low} to {high}.")
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

    @property
    def prefect_auth(self) -> str:
        """User and password of Prefect, as its settings take them."""
        return f"trtops:{self.prefect_password}"

    def hide(self, text: str) -> str:
        """Replace the passwords in a text."""
        return text.replace(self.mlflow_password, "***").replace(self.prefect_password, "***")


def team_folder(store: str | Path | None = None) -> Path:
    """The folder ``team`` in a store's folder: the given one, ``TRTOPS_HOME``, or ``./mlruns``."""
    return Path(store or os.environ.get("TRTOPS_HOME") or "mlruns").resolve() / "team"


def read_state(folder: Path) -> TeamState | None:
    """The stored state; None before the first start; ConfigError if others may read the passwords in it."""
    file = folder / "team.json"
    if not file.exists():
        return None
    if (mode := file.stat().st_mode & 0o777) & 0o077:
        raise errors.ConfigError(f"{file} has mode {mode:o}: others may read it. Run: chmod 600 {file}")
    try:
        return TeamState.from_json(file.read_bytes())
    except errors.FormatError as exc:
        raise errors.FormatError(f"{file}: {exc} End the processes of {folder} by hand and delete the file.") from None


def started_state(folder: Path) -> TeamState:
    """The stored state; ConfigError if no servers were started."""
    state = read_state(folder)
    if state is None:
        raise errors.ConfigError(f"No servers were started for {folder.parent}. Start them: trtops team up")
    return state


def service_environment(folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server or worker: this process's, without variables of other servers, with ``extra``."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(_OTHER_SERVERS)}
    ours |= PREFECT_SETTINGS | {"PREFECT_HOME": str(folder / "prefect"), "MLFLOW_DISABLE_TELEMETRY": "true"}
    return ours | _without_proxy() | dict(extra)


def client_environment(folder: Path | None = None, *, password: bool = True) -> dict[str, str]:
    """The variables for using the servers from a process of this machine; ConfigError if none were started."""
    folder = team_folder() if folder is None else folder
    state = started_state(folder)
    variables = {
        "PREFECT_API_URL": f"{state.prefect_url}/api",
        "PREFECT_HOME": str(folder / "prefect"),  # Prefect would create one in the home directory
        "MLFLOW_TRACKING_URI": state.mlflow_url,
        "TRTOPS_CREDENTIALS": str(folder / "passwords.ini"),
        **_without_proxy(),
    }
    if password:  # MLflow's password stays in its file, while Prefect reads its own from the environment only
        variables["PREFECT_API_AUTH_STRING"] = state.prefect_auth
    return variables


def shell_lines(folder: Path) -> str:
    """The same as lines for a shell; they read Prefect's password instead of containing it."""
    variables = client_environment(folder, password=False)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    command = f"{program()} team password prefect --root {shlex.quote(str(folder.parent))}"
    return "\n".join([*lines, f'export PREFECT_API_AUTH_STRING="$({command})"'])


def _without_proxy() -> dict[str, str]:
    """Variables for sending requests to this machine without a proxy."""
    listed = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    value = ",".join(filter(None, (listed, "127.0.0.1", "localhost")))
    return {"NO_PROXY": value, "no_proxy": value}
