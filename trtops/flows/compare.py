"""The compare flow: two engines, models, runs or saved results, output by output.

From Python: ``from trtops.flows.compare import compare; compare("run:<id>", "model.onnx")``. From the shell:
``python -m trtops.flows.compare run:<id> model.onnx``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.evaluation.compare import CompareConfig, CompareResult
from trtops.ops.evaluation.compare import compare as compare_op


@trtops_task(name="compare-sides")
def compare_sides(actual: str, golden: str, config: CompareConfig, experiment: str | None) -> CompareResult:
    """One call of the compare op, logged to the default store."""
    tags = flow_tags()
    return compare_op(actual, golden, config, tracker=tracker(), experiment=experiment, tags=tags)


@trtops_flow(name="compare")
def compare(
    actual: str,
    golden: str,
    config: Annotated[CompareConfig | None, config_flag] = None,
    *,
    data: str | None = None,
    experiment: str | None = None,
) -> CompareResult:
    """Compare one side with another, and keep the comparison in MLflow.

    Args:
        actual: Under test: ``run:<id>``, an ONNX file, an engine file, or saved outputs.
        golden: Taken for right: likewise.
        config: Everything that can be chosen.
        data: Where input data comes from; takes the config's place.
        experiment: MLflow experiment; named after ``actual`` unless given.

    Returns:
        Verdict, numbers and the id of the MLflow run.
    """
    config = CompareConfig() if config is None else config
    if data is not None:
        config = replace(config, check=replace(config.check, data=data))
    result = compare_sides(actual, golden, config, experiment)
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(compare, "compare"))
