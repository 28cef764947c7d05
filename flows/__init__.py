"""Prefect flows: each the procedure of one op, and nothing of its logic. Only this package knows Prefect.

Prefect is told a few things before anything here imports it: to keep its state beside our store instead of in the home
directory, to send no telemetry, to wait longer than 20 s for its embedded server on a busy machine, and to show our log
lines with its own. Whatever the environment says already wins.
"""

import contextlib
import os

from trtops.tracking.location import default_root

with contextlib.suppress(OSError):  # Prefect makes its own folder, but not the one around it
    default_root().mkdir(parents=True, exist_ok=True)

for _name, _value in {
    "PREFECT_HOME": str(default_root() / ".prefect"),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "trtops",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # No result of ours is persisted, but Prefect writes the exception of a failed flow in any case, by default pickled.
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
}.items():
    os.environ.setdefault(_name, _value)
