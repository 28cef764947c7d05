"""The sensitivity flow: each layer's share of the error of INT8, and which to keep so that a budget is met.

From Python: ``from trtops.flows.sensitivity import sensitivity; sensitivity("model.onnx", "run:<id>", "images/", budget=0.01)``.
From the shell: ``python -m trtops.flows.sensitivity model.onnx calibration.json images/ --budget 0.01``. As a deployment: see
``prefect.yaml``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trtops.flows.artifacts import ended
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Positive
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.engines.sensitivity import SensitivityConfig, SensitivityResult
from trtops.ops.engines.sensitivity import sensitivity as sensitivity_op
from trtops.terminal import progress


@trtops_task(name="measure-layers")
def measure_layers(
    model: str, calibration_cache: str, config: SensitivityConfig, experiment: str | None
) -> SensitivityResult:
    """One call of the sensitivity op, logged to the default store."""
    with progress("Measuring", "layers") as bar:
        return sensitivity_op(
            model,
            calibration_cache,
            config,
            tracker=tracker(),
            experiment=experiment,
            tags=flow_tags(),
            progress=bar.update,
        )


@trtops_flow(name="sensitivity")
def sensitivity(
    model: Path,
    calibration_cache: str,
    data: str | None = None,
    config: Annotated[SensitivityConfig | None, config_flag] = None,
    *,
    budget: Positive | None = None,
    experiment: str | None = None,
) -> SensitivityResult:
    """Measure what quantizing each layer costs, propose what to keep in higher precision, and keep the table in MLflow.

    Args:
        model: The ONNX file.
        calibration_cache: A calibration cache of either format, or ``run:<id>`` of a calibration.
        data: Where inputs come from; random unless given.
        config: Everything that can be chosen; what is given beside it takes its place.
        budget: Relative error that INT8 may make; 0.01 unless given.
        experiment: MLflow experiment; the model's name unless given.

    Returns:
        The layers, the proposal, and the id of the MLflow run.
    """
    config = SensitivityConfig() if config is None else config
    config = replace(config, data=data or config.data, budget=config.budget if budget is None else budget)
    result = measure_layers(str(model), calibration_cache, config, experiment)
    return ended(result)


if __name__ == "__main__":
    sys.exit(run(sensitivity, "sensitivity"))
