"""The precision flow: which nodes of a model must stay in FP32 so that it is accurate enough in 16 bit.

From Python: ``from trtops.flows.precision import precision; precision("model.onnx", output="mixed.onnx")``. From the shell:
``python -m trtops.flows.precision model.onnx --output mixed.onnx``. As a deployment: see ``prefect.yaml``.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.slots import current_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.search.precision import PrecisionConfig, PrecisionResult, PrecisionStep
from trtops.ops.search.precision import precision as precision_op
from trtops.ops.search.precision_engines import Side, candidate_runner
from trtops.terminal import progress


@trtops_task(name="search-nodes")
def search_nodes(model: str, side: Side, config: PrecisionConfig, experiment: str | None) -> PrecisionResult:
    """One call of the precision op, logged to the default store, on a GPU of its own if it needs one."""
    numbers = itertools.count(1)

    def tried(step: PrecisionStep) -> None:
        bar.update(next(numbers), note=f", {step.kept} nodes kept: {'good' if step.good else 'bad'}")

    with (
        current_slot("tensorrt" if side == "tensorrt" else "onnxruntime"),
        progress("Trying", "sets of nodes") as bar,
    ):
        return precision_op(
            model,
            config,
            runner=candidate_runner(side),
            tracker=tracker(),
            experiment=experiment,
            tags=flow_tags(),
            progress=tried,
        )


@trtops_flow(name="precision")
def precision(
    model: Path,
    data: str | None = None,
    config: Annotated[PrecisionConfig | None, config_flag] = None,
    *,
    side: Side = "emulated",
    output: str | None = None,
    experiment: str | None = None,
) -> PrecisionResult:
    """Search for the nodes that must stay in FP32, and keep the answer and the picture in MLflow.

    Args:
        model: The ONNX file, in FP32.
        data: Where inputs come from; random unless given.
        config: Everything that can be chosen; what is given beside it takes its place.
        side: What candidates are evaluated by: 16 bit as a GPU rounds it, emulated on the CPU; or TensorRT engines.
        output: Where to write the model in mixed precision.
        experiment: MLflow experiment; the model's name unless given.

    Returns:
        The nodes to keep, and what else was tried.
    """
    config = PrecisionConfig() if config is None else config
    config = replace(config, data=data or config.data, output=output or config.output)
    result = search_nodes(str(model), side, config, experiment)
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(precision, "precision"))
