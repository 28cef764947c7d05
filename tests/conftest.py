"""What all tests share: nothing of the machine's own tracking or Prefect settings reaches them."""

from __future__ import annotations

import os

for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "PREFECT_API_URL", "TRTOPS_HOME"):
    os.environ.pop(name, None)
