"""Flows for building, calibrating and comparing engines: one model, or a list of models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtops.flows.flow_of import flow_of, run_as_task
from trtops.flows.slots import device_slot
from trtops.ops.comparing.compare import compare as compare_op
from trtops.ops.engines.build_list import BuildListConfig, BuildListResult, build_list
from trtops.ops.engines.calibrate import calibrate as calibrate_op
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.engines.convert import convert as convert_op
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.engines.evaluate import evaluate as evaluate_op
from trtops.ops.engines.sensitivity import sensitivity as sensitivity_op


def _nightly(models: Path, config: BuildListConfig = BuildListConfig(), **logged: Any) -> BuildListResult:
    """Build and evaluate every model of a list, log everything to MLflow, and show a summary.

    Args:
        models: The list, a YAML file on the worker's machine.
    """

    def convert_one(model: str, config: ConvertConfig, experiment: str, tags: Mapping[str, str]) -> ConvertResult:
        def build() -> ConvertResult:
            with device_slot(config.build.backend):
                return convert_op(model, config, tracker=logged["tracker"], experiment=experiment, tags=tags)

        name = f"build {Path(model).stem} {config.build.precision} {config.build.backend}"
        return run_as_task(name, build, by_steps=True)

    return build_list(models, config, convert_one=convert_one, **logged)


convert = flow_of(convert_op, by_steps=True)
calibrate = flow_of(calibrate_op, by_steps=True)
sensitivity = flow_of(sensitivity_op)
compare = flow_of(compare_op)
evaluate = flow_of(evaluate_op)
nightly = flow_of(_nightly, by_steps=True)
