"""User and password of a tracking server from a file, so that no environment contains them.

MLflow reads them from two environment variables, which every child process inherits, or from one file in the home
folder for all servers. Here ``TRTOPS_CREDENTIALS`` names the file, in MLflow's own format::

    [mlflow]
    mlflow_tracking_username = me
    mlflow_tracking_password = ...
"""

from __future__ import annotations

import configparser
import functools
import os
import stat
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.tracking.mlflow.installed import library

VARIABLE = "TRTOPS_CREDENTIALS"
_NAME = "trtops"


def use_credentials_file() -> None:
    """Make MLflow read user and password from the file for each request, if the variable names one."""
    if os.environ.get(VARIABLE):
        os.environ.setdefault("MLFLOW_TRACKING_AUTH", _NAME)
        _register()


@functools.cache
def _register() -> None:
    library()
    from mlflow.tracking.request_auth import registry

    # MLflow's only other way is an entry point, which needs another installation in every checkout.
    registry._request_auth_provider_registry.register(_FileProvider)  # type: ignore[no-untyped-call]


def read_credentials(file: Path) -> tuple[str, str]:
    """User and password from a file."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        parser.read_string(file.read_text(encoding="utf-8"))
        found = parser["mlflow"]["mlflow_tracking_username"], parser["mlflow"]["mlflow_tracking_password"]
    except OSError as exc:
        raise errors.StoreError(f"{VARIABLE}: {file}: {exc.strerror}.") from exc
    except (configparser.Error, KeyError):
        raise errors.StoreError(
            f"{VARIABLE}: {file} lacks mlflow_tracking_username or mlflow_tracking_password in its section [mlflow]."
        ) from None
    if mode & 0o077:
        raise errors.StoreError(f"{VARIABLE}: {file} has mode {mode:o}; others can read it. Run: chmod 600 {file}")
    return found


class _FileProvider:
    """The interface of MLflow's registry of authentication."""

    def get_name(self) -> str:
        return _NAME

    def get_auth(self) -> Any:
        from requests.auth import HTTPBasicAuth

        file = os.environ.get(VARIABLE)
        return HTTPBasicAuth(*read_credentials(Path(file))) if file else None
