"""The accuracy flow: the first tensor at which an engine parts from the model it was built from.

From Python: ``from trtops.flows.accuracy import accuracy; accuracy("model.onnx", precision="fp16")``. From the shell:
``python -m trtops.flows.accuracy model.onnx --precision fp16``. As a deployment: see ``prefect.yaml``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.slots import current_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.search.accuracy import AccuracyConfig, AccuracyResult
from trtops.ops.search.accuracy import accuracy as accuracy_op
from trtops.ops.search.accuracy_sides import Side, make_side
from trtops.spec import Precision


@trtops_task(name="compare-tensors")
def compare_tensors(
    model: str, side: Side, precision: Precision, config: AccuracyConfig, experiment: str | None
) -> AccuracyResult:
    """One call of the accuracy op, logged to the default store, on a GPU of its own if it needs one."""
    actual = make_side(side, precision)
    with current_slot("tensorrt" if side == "tensorrt" else "onnxruntime"):
        return accuracy_op(model, actual, config, tracker=tracker(), experiment=experiment, tags=flow_tags())


@trtops_flow(name="accuracy")
def accuracy(
    model: Path,
    data: str | None = None,
    config: Annotated[AccuracyConfig | None, config_flag] = None,
    *,
    side: Side = "onnxruntime",
    precision: Precision = "fp32",
    experiment: str | None = None,
) -> AccuracyResult:
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
    config = AccuracyConfig() if config is None else config
    config = replace(config, data=data or config.data)
    result = compare_tensors(str(model), side, precision, config, experiment)
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(accuracy, "accuracy"))
