"""Whether the store and the servers can be used, for ``trtops doctor``."""

from __future__ import annotations

import base64
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from trtops import errors
from trtops.record import Record
from trtops.system.masking import masked
from trtops.tracking.location import Store, resolve
from trtops.tracking.spool import default_spool

State: TypeAlias = Literal["ok", "none", "problem"]
"""``none``: it is missing, which is no problem."""

_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class HealthFinding(Record):
    """The state of one thing.

    Attributes:
        subject: The thing.
        state: Its state.
        text: The state in words.
        remedy: A command to copy; empty if nothing needs to be done.
    """

    subject: str
    state: State
    text: str
    remedy: str = ""

    def line(self) -> str:
        """The finding in a line or two of text."""
        return f"{self.state:<8} {self.subject}: {self.text}" + (f"\n{'':<9}do: {self.remedy}" if self.remedy else "")


def store_findings(location: str | Path | None = None) -> list[HealthFinding]:
    """Whether the store exists, can be opened and written, and has spooled runs. Makes nothing."""
    try:
        where = resolve(location)
        found = [_folder_finding(where) if isinstance(where, Store) else server_finding("MLflow", where, "/health")]
    except errors.TrtopsError as exc:
        return [HealthFinding(subject="store", state="problem", text=str(exc))]
    if spooled := len(default_spool(where if isinstance(where, Store) else None).runs()):
        text = f"{spooled} runs on this machine were not uploaded yet"
        found.append(HealthFinding(subject="spool", state="problem", text=text, remedy="trtops store upload"))
    return found


def _folder_finding(store: Store) -> HealthFinding:
    from trtops.tracking.mlflow import MlflowTracker, embedded  # not needed for help

    if not store.database.exists():
        text = f"none in {store.root} yet; the first recorded run makes it"
        return HealthFinding(subject="store", state="none", text=text)
    MlflowTracker(store)
    if not embedded.is_writable(store):
        return HealthFinding(subject="store", state="problem", text=embedded.read_only_text(store))
    return HealthFinding(subject="store", state="ok", text=str(store.root))


def server_finding(name: str, address: str, path: str, *, remedy: str = "", login: str = "") -> HealthFinding:
    """Whether a server answers.

    Args:
        name: Its name.
        address: Its ``http(s)`` address.
        path: The path to request.
        remedy: What to do if it does not answer.
        login: ``user:password``, if it needs one.
    """
    request = urllib.request.Request(address.rstrip("/") + path)
    if login:
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    shown = masked(address)
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS):
            return HealthFinding(subject=name, state="ok", text=f"answers at {shown}")
    except urllib.error.HTTPError as exc:
        if exc.code in (401, 403):
            return HealthFinding(subject=name, state="ok", text=f"answers at {shown}, and needs a password")
        text = f"answers at {shown} with {exc.code} {exc.reason}"
    except (OSError, ValueError) as exc:
        text = f"does not answer at {shown}: {getattr(exc, 'reason', exc)}"
    if not remedy:
        variable = "MLFLOW_TRACKING_URI" if name == "MLflow" else "PREFECT_API_URL"
        local = "127.0.0.1" in os.environ.get(variable, "")
        remedy = f"{'trtops team up' if local else 'ask who runs the server'}; or work without it: unset {variable}"
    return HealthFinding(subject=name, state="problem", text=text, remedy=remedy)
