"""Runs in MLflow: in an embedded store, or on a server. Only this package knows MLflow.

How MLflow is used, and why:

* One client with explicit run ids. The fluent API's active run is per thread, and asyncio tasks would share it.
* The metrics of a run have one timestamp, the run's start, and step 0, so that logging one twice adds nothing. MLflow
  shows the *larger* of two values with the same timestamp, so a changed one is logged a millisecond later.
* Artifacts of an embedded store are written into the run's folder, each whole or not at all; those of a server go
  through the client.
* Databases are checked before MLflow opens them (:mod:`trtops.tracking.mlflow.embedded`), since it would upgrade them.

MLflow is imported on first use, which takes 2 s.
"""

from trtops.tracking.mlflow.tracker import MlflowTracker as MlflowTracker
