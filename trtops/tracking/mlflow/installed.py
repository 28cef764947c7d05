"""The installed MLflow: imported quietly, with a password from a file, and its exceptions as errors of ours."""

import configparser
import functools
import logging
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.extras import require
from trtops.system.masking import masked, masked_json

SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # trtops.tracking.mlflow.connection retries: MLflow would make a run twice if its first answer was lost.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}

# MLflow reads user and password from two environment variables, which every child process inherits, or from one file in
# the home folder for all servers. This variable names a file in the same format, read for each request.
_CREDENTIALS = "TRTOPS_CREDENTIALS"


def library() -> Any:
    """MLflow, imported without output and telemetry. Retries are left to trtops."""
    # Each time: MLflow reads them at each call, and a program may restore its own.
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    return _imported()


@functools.cache
def _imported() -> Any:
    require("mlflow")
    import mlflow
    import mlflow.tracking.context.registry

    # It prints the traceback of every database error that it then raises, and a line for every migration.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return mlflow


def run_context() -> Mapping[str, str]:
    """MLflow's context tags for every run of this process, such as its user."""
    tags: Mapping[str, str] = masked_json(library().tracking.context.registry.resolve_tags())
    return tags


def use_credentials_file() -> None:
    """Make MLflow read user and password from the file in ``TRTOPS_CREDENTIALS``, if set."""
    if os.environ.get(_CREDENTIALS):
        os.environ.setdefault("MLFLOW_TRACKING_AUTH", _FileProvider().get_name())
        _register()


@functools.cache
def _register() -> None:
    library()
    from mlflow.tracking.request_auth import registry

    # MLflow's only other way is an entry point, which needs another installation in every checkout.
    registry._request_auth_provider_registry.register(_FileProvider)  # type: ignore[no-untyped-call]


class _FileProvider:
    """The interface of MLflow's registry of authentication."""

    def get_name(self) -> str:
        return "trtops"

    def get_auth(self) -> Any:
        from requests.auth import HTTPBasicAuth

        file = os.environ.get(_CREDENTIALS)
        return HTTPBasicAuth(*read_credentials(Path(file))) if file else None


def read_credentials(file: Path) -> tuple[str, str]:
    """User and password from a file with ``mlflow_tracking_username`` and ``mlflow_tracking_password``."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        parser.read_string(file.read_text(encoding="utf-8"))
        credentials = parser["mlflow"]["mlflow_tracking_username"], parser["mlflow"]["mlflow_tracking_password"]
    except OSError as exc:
        raise errors.StoreError(f"{_CREDENTIALS}: {file}: {exc.strerror}.") from exc
    except (configparser.Error, KeyError):
        raise errors.StoreError(
            f"{_CREDENTIALS}: {file} lacks mlflow_tracking_username or mlflow_tracking_password in section [mlflow]."
        ) from None
    if mode & 0o077:
        raise errors.StoreError(f"{_CREDENTIALS}: {file} has mode {mode:o}; others can read it. Run: chmod 600 {file}")
    return credentials


# Parts of error texts that mean that nothing can be written, with their explanations.
_NO_SPACE = {
    "disk is full": "the disk is full. Free some space and run again",
    "No space left": "the disk is full. Free some space and run again",
    "Disk quota exceeded": "the disk quota is used up. Free some space and run again",
    "readonly database": "it is read-only",
    "Read-only file system": "it is on a read-only file system",
}


def translated(exc: Exception, location: str, target: str = "") -> errors.TrackingError:
    """MLflow's exception, or its HTTP client's, as one of ours; ``target`` is the name or id in the request."""
    import requests

    text, code = masked(str(exc)), getattr(exc, "error_code", "")
    response = getattr(exc, "response", None)
    if (reason := next((reason for part, reason in _NO_SPACE.items() if part in text), None)) is not None:
        return errors.NoRoomError(f"{location} could not be written: {reason}.")
    if code == "RESOURCE_DOES_NOT_EXIST":
        return errors.RunNotFoundError(f"{location}: {text}")
    if code == "INVALID_PARAMETER_VALUE":
        return errors.LogError(f"{location} refused it: {text}")
    if code == "PERMISSION_DENIED" or (response is not None and response.status_code == 403):
        return errors.AccessDeniedError(f"{location} refused {_denied_request(text, response, target)}")
    if code == "UNAUTHENTICATED":
        return errors.AccessDeniedError(
            f"{location} refused access: {text} Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "TRTOPS_CREDENTIALS to a file with both."
        )
    # MLflow has no error code for an answer that did not come, and wraps the HTTP client's exceptions in texts.
    transient = (
        isinstance(exc, (requests.ConnectionError, requests.Timeout))
        or (response is not None and response.status_code in (429, 502, 503, 504))
        or ("API request to" in text and ("failed with exception" in text or "timeout exception" in text))
        or (code == "TEMPORARILY_UNAVAILABLE" and "unable to open" not in text and "readonly" not in text)
    )
    if transient:
        # Texts of the HTTP client hold several exceptions; the error of the operating system is the cause.
        cause = re.search(r"\[Errno -?\d+\] ([\w ]+)", text)
        reason = f"{cause[1]}." if cause else f"{text:.500}"
        return errors.TrackingUnavailableError(f"{location} did not answer: {reason} Try again when it does.")
    if response is not None:
        return errors.LogError(f"{location} answered {response.status_code}: {text:.500}")
    return errors.StoreError(f"{location}: {text:.500}")


def _denied_request(text: str, response: Any, target: str) -> str:
    """A request that the server refused to an account, and the permission that it needs."""
    from mlflow.utils.credentials import read_mlflow_creds

    file = os.environ.get(_CREDENTIALS)
    account = read_credentials(Path(file))[0] if file else read_mlflow_creds().username
    match = re.search(r"/mlflow(?:-artifacts)?/([a-z-]+(?:/[a-z-]+)?)", text)
    request = match[1] if match else "a request"
    method, verb = "" if response is None else response.request.method, request.rpartition("/")[2]
    if "DELETE" in (method, verb.upper()):
        permission = "MANAGE"
    else:
        permission = "READ" if method == "GET" or verb.startswith(("get", "search", "list")) else "EDIT"
    subject = "registered model" if request.startswith(("registered-models", "model-versions")) else "experiment"
    named = f" {target!r}" if target else "", f" {account!r}" if account else ""
    return (
        f"{request}{named[0]} to the account{named[1]}, which needs the permission {permission} on this {subject}. "
        "Its administrator can grant it."
    )
