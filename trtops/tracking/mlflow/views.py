"""The first view of an experiment in MLflow: saved columns, and a description with a link to them.

MLflow keeps saved views as tags of the experiment: JSON with a name and the state of the runs page, deflated.
"""

from __future__ import annotations

import base64
import json
import time
import zlib

from trtops.tracking.schema import Metric, Tag, metric_key

VIEW = "trtops"
"""The key of the view, for ``viewStateShareKey`` in an address."""

VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"

COLUMNS = (
    f"tags.`{Tag.VERDICT}`",
    f"tags.`{Tag.KIND}`",
    "params.`precision`",
    f"metrics.`{metric_key((Metric.ERROR, 'max_abs'))}`",
    f"metrics.`{metric_key((Metric.ERROR, 'top1_agreement'))}`",
    f"tags.`{Tag.WORST_OUTPUT}`",
    f"metrics.`{metric_key((Metric.LATENCY, 'p50_ms'))}`",
    f"metrics.`{metric_key(Metric.ENGINE_BYTES)}`",
    f"metrics.`{metric_key(Metric.BUILD_SECONDS)}`",
    f"tags.`{Tag.HEADLINE}`",
    f"tags.`{Tag.DEVICE}`",
)
"""The columns of the view, as MLflow names them."""


def experiment_tags(experiment_id: str) -> dict[str, str]:
    """The tags that an experiment starts with: its view and its description.

    Args:
        experiment_id: The experiment's id in MLflow, for the links of the description.
    """
    now = round(1000 * time.time())
    state = {
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "lifecycleFilter": "Active",
        "selectedColumns": ["attributes.`Created`", *COLUMNS],
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode("utf-8"))).decode("ascii")
    view = {"name": "Verdicts", "createdAt": now, "updatedAt": now, "state": f"deflate;{packed}"}
    return {VIEW_TAG: json.dumps(view), Tag.NOTE: _DESCRIPTION.format(link=view_link(experiment_id))}


def view_link(experiment_id: str) -> str:
    """The table of an experiment's runs as the view shows it, from the ``#`` of its address on."""
    return f"#/experiments/{experiment_id}/runs?viewStateShareKey={VIEW}&workflowType=machine_learning"


_DESCRIPTION = """\
[**Runs with their verdicts**]({link}): verdict, kind, precision, error, agreement, latency, size, build time, device.

A run with a red mark is bad: its engine does not do what the model does, or there could be no verdict (its verdict is \
then `error`). Each run's description says why, and what to do next; `report/report.html` among its artifacts is \
the same as a page with pictures. `error/max_abs` and the like are the worst over all outputs of a run, \
`trtops.worst_output` names that output.
"""
