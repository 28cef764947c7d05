"""The triage flow: the first tensor at which an engine parts from the model it was built from.

From Python: ``from trtops.flows.triage import triage; triage("model.onnx", precision="fp16")``. From the shell:
``python -m trtops.flows.triage model.onnx --precision fp16``. As a deployment: see ``prefect.yaml``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trtops.flows.artifacts import show_result
from trtops.flows.command import config_flag, run
from trtops.flows.slots import current_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.search.triage.config import TriageConfig
from trtops.ops.search.triage.op import triage as triage_op
from trtops.ops.search.triage.result import TriageResult
from trtops.ops.search.triage.sides import Side, make_side
from trtops.spec import Precision


@trtops_task(name="compare-tensors")
def compare_tensors(
    model: str, side: Side, precision: Precision, config: TriageConfig, experiment: str | None
) -> TriageResult:
    """One call of the triage op, logged to the default store, on a GPU of its own if it needs one."""
    actual = make_side(side, precision)
    with current_slot("tensorrt" if side == "tensorrt" else "onnxruntime"):
        return triage_op(model, actual, config, tracker=tracker(), experiment=experiment, tags=flow_tags())


@trtops_flow(name="triage", run_name="{model.stem}")
def triage(
    model: Path,
    data: str | None = None,
    config: Annotated[TriageConfig | None, config_flag] = None,
    *,
    side: Side = "onnxruntime",
    precision: Precision = "fp32",
    experiment: str | None = None,
) -> TriageResult:
    """Compare every tensor of a model with what an engine computes, and keep table and picture in MLflow.

    Args:
        model: The ONNX file.
        data: Where inputs come from; random unless given.
        config: Everything that can be chosen; what is given beside it takes its place.
        side: What is under test: an engine of a back end, or 16 bit as a GPU rounds it, emulated on the CPU.
        precision: The precision of the side under test.
        experiment: MLflow experiment; the model's name unless given.

    Returns:
        Where they part.
    """
    config = TriageConfig() if config is None else config
    config = replace(config, data=data or config.data)
    result = compare_tensors(str(model), side, precision, config, experiment)
    show_result(result)
    return result


if __name__ == "__main__":
    sys.exit(run(triage, "triage"))
