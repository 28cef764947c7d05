"""The view "Verdicts" of MLflow's table of runs: verdicts, reasons, errors and latencies.

MLflow keeps saved views as tags of the experiment: JSON with a name, and the state of the page, deflated.
"""

import base64
import json
import time
import zlib

from trtops.tracking.schema import Tag

_KEY = "trtops"
# Of MLflow's table, with widths in pixels: the engine's verdict, error, speed, size and data come first.
_COLUMNS = {
    f"tags.`{Tag.VERDICT}`": 115,
    "metrics.`error/of_limit`": 125,
    "metrics.`latency/p50_ms`": 130,
    "metrics.`build/engine_bytes`": 150,
    "attributes.`Dataset`": 150,
    f"tags.`{Tag.HEADLINE}`": 260,
    "attributes.`Created`": 130,
}


def experiment_tags(experiment_id: str) -> dict[str, str]:
    """Tags of a new experiment: its kind, the view, and the description at the top of its page with links."""
    order = {"orderByKey": "attributes.start_time", "orderByAsc": False, "lifecycleFilter": "Active"}
    columns = {"selectedColumns": list(_COLUMNS), "columnOrder": list(_COLUMNS), "columnWidths": _COLUMNS}
    packed = base64.b64encode(zlib.compress(json.dumps({**order, **columns}).encode())).decode()
    created_ms = round(1000 * time.time())
    view = {"name": "Verdicts", "createdAt": created_ms, "updatedAt": created_ms, "state": f"deflate;{packed}"}
    page = f"#/experiments/{experiment_id}"
    runs = f"{page}/runs?viewStateShareKey={_KEY}&workflowType=machine_learning"
    note = (
        # MLflow's list of experiments shows the first words as plain text.
        "Verdict, error, latency, size and data of each run (an error/of_limit above 1 is bad): "
        f"**[Verdicts]({runs})**. Engines with their files, for `mlflow.pyfunc.load_model`: "
        f"**[Engines]({page}/models?workflowType=machine_learning)**."
    )
    # Releases of MLflow that have no switch between the two views choose the one of this kind.
    kind = {"mlflow.experimentKind": "custom_model_development"}
    return {f"mlflow.sharedViewState.{_KEY}": json.dumps(view), Tag.NOTE: note, **kind}
