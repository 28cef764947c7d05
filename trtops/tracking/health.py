"""Whether runs can be kept: what `trtops doctor` says of the store, and what to do where something is wrong."""

from __future__ import annotations

import base64
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from trtops import errors
from trtops.masking import masked
from trtops.record import Record
from trtops.tracking.location import Store, resolve
from trtops.tracking.outbox import default_outbox

State: TypeAlias = Literal["ok", "none", "problem"]
"""``none``: it is not there, and need not be."""

_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class HealthFinding(Record):
    """What was found out about one thing.

    Attributes:
        subject: What was looked at.
        state: How it is.
        text: The same in words.
        remedy: What to do, as a line to copy; empty where nothing needs to be done.
    """

    subject: str
    state: State
    text: str
    remedy: str = ""

    def line(self) -> str:
        """The finding in a line or two of text."""
        return f"{self.state:<8} {self.subject}: {self.text}" + (f"\n{'':<9}do: {self.remedy}" if self.remedy else "")


def store_findings(location: str | Path | None = None) -> list[HealthFinding]:
    """Whether the store is there, of the right version, in its place and writable, and what waits for it. Makes nothing."""
    try:
        where = resolve(location)
        found = [_of_folder(where) if isinstance(where, Store) else server_finding("MLflow", where, "/health")]
    except errors.TrtopsError as exc:
        return [HealthFinding(subject="store", state="problem", text=str(exc))]
    waiting = len(default_outbox(where if isinstance(where, Store) else None).folders())
    if waiting:
        text = f"{waiting} runs wait on this machine for a store that could not take them"
        found.append(HealthFinding(subject="outbox", state="problem", text=text, remedy="trtops store upload"))
    return found


def _of_folder(store: Store) -> HealthFinding:
    from trtops.tracking.mlflow import embedded  # sqlite3, which help need not wait for
    from trtops.tracking.mlflow.rows import run_rows

    if not store.database.exists():
        text = f"none in {store.root} yet; the first run that is remembered makes it"
        return HealthFinding(subject="store", state="none", text=text)
    embedded.check_version(store)
    embedded.check_place(store)
    if not embedded.is_writable(store):
        return HealthFinding(subject="store", state="problem", text=embedded.read_only(store))
    running = [row for row in run_rows(store) if row.ours and not row.deleted]
    return HealthFinding(subject="store", state="ok", text=f"{store.root}, {len(running)} runs")


def server_finding(name: str, address: str, path: str, *, remedy: str = "", login: str = "") -> HealthFinding:
    """Whether a server answers.

    Args:
        name: What it is called.
        address: Its ``http(s)`` address.
        path: What is asked for below it.
        remedy: What to do if it does not.
        login: ``user:password``, where it asks for one.
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
            return HealthFinding(subject=name, state="ok", text=f"answers at {shown}, and asks for a password")
        text = f"answers at {shown} with {exc.code} {exc.reason}"
    except (OSError, ValueError) as exc:
        text = f"does not answer at {shown}: {getattr(exc, 'reason', exc)}"
    return HealthFinding(subject=name, state="problem", text=text, remedy=remedy or _remedy_of(name))


def _remedy_of(name: str) -> str:
    variable = "MLFLOW_TRACKING_URI" if name == "MLflow" else "PREFECT_API_URL"
    local = "trtops team up" if "127.0.0.1" in os.environ.get(variable, "") else "ask who runs the server"
    return f"{local}; or work without it: unset {variable}"
