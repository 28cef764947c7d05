"""Prefect flows: each the procedure of one op, and nothing of its logic. Only this package knows Prefect.

Runs of deployments run no scripts but those that their worker allows (:mod:`trtops.allowed`).

Prefect is told a few things before anything here imports it: to keep its state beside our store instead of in the home
directory, to send no telemetry, to wait longer than 20 s for its embedded server on a busy machine, and to show our log
lines with its own. Whatever the environment says already wins.
"""

import contextlib
import os

from trtops.team.access import PREFECT_SETTINGS
from trtops.tracking.location import default_root

with contextlib.suppress(OSError):  # Prefect makes its own folder, but not the one around it
    default_root().mkdir(parents=True, exist_ok=True)

if os.environ.get("PREFECT__FLOW_RUN_ID"):  # a worker started this process, for one flow run
    os.environ.setdefault("TRTOPS_ALLOWED_SCRIPTS", "")

for _name, _value in {
    "PREFECT_HOME": str(default_root() / ".prefect"),
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    **PREFECT_SETTINGS,
}.items():
    os.environ.setdefault(_name, _value)
os.environ["PREFECT_HOME"] = os.path.abspath(
    os.path.expanduser(os.environ["PREFECT_HOME"])
)  # its server starts elsewhere
