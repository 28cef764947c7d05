"""Passwords of a team's servers: made on first use, in one file that only its owner may read.

The file is in the form of MLflow's own ``credentials`` file, so that ``TRTOPS_CREDENTIALS`` may name it, or one with just its
part ``[mlflow]`` on another machine::

    [mlflow]
    mlflow_tracking_username = admin
    mlflow_tracking_password = ...
    server_secret_key = ...
    [prefect]
    auth_string = trtops:...
"""

from __future__ import annotations

import configparser
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from trtops import errors


@dataclass(frozen=True, kw_only=True)
class Passwords:
    """What is in the file; its values are not shown when it is printed.

    Attributes:
        mlflow_user: The administrator of MLflow's server.
        mlflow_password: Their password.
        mlflow_secret_key: What MLflow's server signs its forms with.
        prefect_auth: User and password of Prefect's API, ``user:password``.
    """

    mlflow_user: str
    mlflow_password: str = field(repr=False)
    mlflow_secret_key: str = field(repr=False)
    prefect_auth: str = field(repr=False)

    def hide(self, text: str) -> str:
        """A text without the passwords in it."""
        for secret in (
            self.prefect_auth,
            self.prefect_auth.partition(":")[2],
            self.mlflow_password,
            self.mlflow_secret_key,
        ):
            text = text.replace(secret, "***")
        return text


def ensure_passwords(file: Path) -> Passwords:
    """The passwords in a file, which is made if there is none.

    Raises:
        ConfigError: If others may read it, or something is missing in it.
    """
    made = configparser.ConfigParser(interpolation=None)
    made["mlflow"] = {
        "mlflow_tracking_username": "admin",
        "mlflow_tracking_password": secrets.token_urlsafe(24),
        "server_secret_key": secrets.token_urlsafe(32),
    }
    made["prefect"] = {"auth_string": f"trtops:{secrets.token_urlsafe(24)}"}
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_passwords(file)
    with open(handle, "w", encoding="utf-8") as out:
        made.write(out)
    return read_passwords(file)


def read_passwords(file: Path) -> Passwords:
    """The passwords in a file.

    Raises:
        ConfigError: If there is none, others may read it, or something is missing in it.
    """
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        text = file.read_text(encoding="utf-8")
    except OSError as exc:
        raise errors.ConfigError(f"Passwords {file}: {exc.strerror}. `trtops team up` makes it.") from exc
    if mode & 0o077:
        raise errors.ConfigError(f"Passwords {file}: its mode is {mode:o}; others may read it. Do: chmod 600 {file}")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
        return Passwords(
            mlflow_user=parser["mlflow"]["mlflow_tracking_username"],
            mlflow_password=parser["mlflow"]["mlflow_tracking_password"],
            mlflow_secret_key=parser["mlflow"]["server_secret_key"],
            prefect_auth=parser["prefect"]["auth_string"],
        )
    except (configparser.Error, KeyError) as exc:
        what = f"{exc} is missing" if isinstance(exc, KeyError) else "it is damaged"
        raise errors.ConfigError(
            f"Passwords {file}: {what}. Put it right, or delete the file to have new ones made at the next start; an "
            "MLflow server that was started before keeps the old one."
        ) from None
