"""The flows of Prefect, one for each op, such as ``from trtops.flows import convert``. Only this package knows Prefect.

A flow is called like a function, or deployed (``prefect.yaml``). Deployed runs execute no scripts but those that their
worker allows (:mod:`trtops.system.allowed`).

Before Prefect is imported, its settings are set here: state next to our store instead of in the home directory, no
telemetry, more than 20 s for its own server to start on a busy machine, and our log lines with its own. Variables that
are set already win.
"""

import contextlib
import os

from trtops.extras import RECORDING, require
from trtops.lazy import exports
from trtops.team.access import PREFECT_SETTINGS
from trtops.tracking.location import default_root

_FLOWS = {
    "trtops.flows.analyses": "accuracy audit bundle choose gate precision reduce triage",
    "trtops.flows.campaigns": "bisect debug_build diff_tactics promote prove",
    "trtops.flows.engines": "calibrate compare convert evaluate nightly sensitivity watch",
    "trtops.flows.reaping": "prune_runs reap",
}

require("prefect", *RECORDING)

__getattr__, __dir__ = exports(__name__, {name: module for module, names in _FLOWS.items() for name in names.split()})

with contextlib.suppress(OSError):  # Prefect creates its own folder, but not the one around it
    default_root().mkdir(parents=True, exist_ok=True)

if os.environ.get("PREFECT__FLOW_RUN_ID"):  # a worker started this process, for one flow run
    os.environ.setdefault("TRTOPS_ALLOWED_SCRIPTS", "")

for _name, _value in {
    "PREFECT_HOME": str(default_root() / ".prefect"),
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    **PREFECT_SETTINGS,
}.items():
    os.environ.setdefault(_name, _value)
# Prefect's server starts in another folder.
os.environ["PREFECT_HOME"] = os.path.abspath(os.path.expanduser(os.environ["PREFECT_HOME"]))
