"""The view "Verdicts" of MLflow's table of runs: verdicts, reasons, errors and latencies.

MLflow keeps saved views as tags of the experiment: JSON with a name, and the state of the page, deflated.
"""

import base64
import json
import time
import zlib

from trtops.tracking.schema import Tag

_KEY = "trtops"
_RUN_COLUMNS = (
    "metrics.`error/of_limit`",
    "metrics.`latency/p50_ms`",
    f"tags.`{Tag.VERDICT}`",
    f"tags.`{Tag.HEADLINE}`",
)


def experiment_tags(experiment_id: str) -> dict[str, str]:
    """Tags of a new experiment: the view, and a description with a link to it for the top of MLflow's page."""
    columns = ["attributes.`Created`", *_RUN_COLUMNS]
    state = {"orderByKey": "attributes.start_time", "orderByAsc": False, "selectedColumns": columns}
    packed = base64.b64encode(zlib.compress(json.dumps({"lifecycleFilter": "Active", **state}).encode())).decode()
    created_ms = round(1000 * time.time())
    view = {"name": "Verdicts", "createdAt": created_ms, "updatedAt": created_ms, "state": f"deflate;{packed}"}
    link = f"#/experiments/{experiment_id}/runs?viewStateShareKey={_KEY}&workflowType=machine_learning"
    note = f"[Runs with verdicts and reasons]({link}). An `error/of_limit` above 1 is bad. Engines are in `engine/`."
    return {f"mlflow.sharedViewState.{_KEY}": json.dumps(view), Tag.NOTE: note}
