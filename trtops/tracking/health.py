"""Whether the store and the servers can be used, for ``trtops doctor``."""

from __future__ import annotations

import base64
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtops import errors
from trtops.record import Record
from trtops.system.masking import masked
from trtops.tracking.location import Store, resolve
from trtops.tracking.spool import default_spool

_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class HealthFinding(Record):
    """The state of one thing; ``none`` if it is missing, which is no problem. ``remedy`` is a command to copy."""

    subject: str
    state: Literal["ok", "none", "problem"]
    text: str
    remedy: str = ""

    def line(self) -> str:
        """The finding in a line or two of text."""
        return f"{self.state:<8} {self.subject}: {self.text}" + (f"\n{'':<9}do: {self.remedy}" if self.remedy else "")


def store_findings(location: str | Path | None = None) -> list[HealthFinding]:
    """Whether the store exists, can be opened and written, and has spooled runs. Makes nothing."""
    from trtops.tracking.mlflow import MlflowTracker  # not needed for help

    try:
        where = resolve(location)
        if not isinstance(where, Store):
            found = [server_finding("MLflow", where, "/health")]
        elif not where.database.exists():
            text = f"none in {where.root} yet; the first recorded run makes it"
            found = [HealthFinding(subject="store", state="none", text=text)]
        else:
            MlflowTracker(where)
            if not os.access(where.root, os.W_OK):
                raise errors.StoreError(f"{where.root} is read-only here")
            found = [HealthFinding(subject="store", state="ok", text=str(where.root))]
    except errors.TrtopsError as exc:
        return [HealthFinding(subject="store", state="problem", text=str(exc))]
    if spooled := len(default_spool(where if isinstance(where, Store) else None).runs()):
        text = f"{spooled} runs on this machine were not uploaded yet"
        found.append(HealthFinding(subject="spool", state="problem", text=text, remedy="trtops store upload"))
    return found


def server_finding(name: str, address: str, path: str, *, login: str = "") -> HealthFinding:
    """Whether a server answers a request of ``path``; ``login`` is ``user:password``, if it needs one."""
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
    variable = "MLFLOW_TRACKING_URI" if name == "MLflow" else "PREFECT_API_URL"
    local = "127.0.0.1" in os.environ.get(variable, "")
    remedy = f"{'trtops team up' if local else 'ask who runs the server'}; or work without it: unset {variable}"
    return HealthFinding(subject=name, state="problem", text=text, remedy=remedy)
