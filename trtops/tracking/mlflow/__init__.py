"""Runs kept by MLflow: in an embedded store, or on a server. The only room that knows MLflow.

How MLflow is used, and why:

* One client with explicit run ids. The fluent API's active run is per thread and mixes up under asyncio.
* Metrics of a run have one timestamp, the run's start, and step 0, so that logging one twice adds nothing. MLflow shows
  the *larger* of two values with the same timestamp, so a changed one is logged a millisecond later.
* Artifacts of an embedded store are written straight into the run's folder, each whole or not at all; those of a server go
  through the client.
* Databases are never made, upgraded or trusted by opening them: :mod:`trtops.tracking.mlflow.embedded` looks first.

MLflow is imported on first use (2 s).
"""

from __future__ import annotations

from trtops.tracking.mlflow.installed import (
    create_database,
    known_revisions,
    release,
    server_command,
    upgrade_database,
)
from trtops.tracking.mlflow.run import MlflowRun
from trtops.tracking.mlflow.tracker import MlflowTracker

__all__ = [
    "MlflowRun",
    "MlflowTracker",
    "create_database",
    "known_revisions",
    "release",
    "server_command",
    "upgrade_database",
]
