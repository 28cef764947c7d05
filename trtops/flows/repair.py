"""The repair flow: the fastest engine that passes.

From Python: ``from trtops.flows.repair import repair; repair("model.onnx", precision="fp16")``. From the shell: ``python -m trtops.flows.repair
model.onnx --precision fp16``. As a deployment: see ``prefect.yaml``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trtops.flows.artifacts import show_result
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Count, Positive
from trtops.flows.slots import current_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.repairing.config import RepairConfig, RepairResult
from trtops.ops.repairing.op import repair as repair_op
from trtops.spec import BackendName, Precision


@trtops_task(name="search-repair")
def search_repair(model: str, config: RepairConfig, experiment: str | None) -> RepairResult:
    """One call of the repair op, logged to the default store, on a GPU of its own if it needs one."""
    with current_slot(config.build.backend):
        return repair_op(model, config, tracker=tracker(), experiment=experiment, tags=flow_tags())


@trtops_flow(name="repair", run_name="{model.stem}")
def repair(
    model: Path,
    config: Annotated[RepairConfig | None, config_flag] = None,
    *,
    backend: BackendName | None = None,
    precision: Precision | None = None,
    data: str | None = None,
    max_builds: Count | None = None,
    minutes: Positive | None = None,
    output: str | None = None,
    experiment: str | None = None,
) -> RepairResult:
    """Find the fastest engine that passes, and keep error, latency and picture of all that were tried.

    Args:
        model: The ONNX file.
        config: Everything that can be chosen; what is given beside it takes its place.
        backend: What builds engines; onnxruntime unless given.
        precision: The precision asked for; fp32 unless given.
        data: Where inputs come from; random unless given.
        max_builds: Builds at most; 80 unless given.
        minutes: No engine is built after so many minutes; no limit unless given.
        output: File for the chosen config, as convert takes it.
        experiment: MLflow experiment; the model's name unless given.

    Returns:
        The chosen engine's config, and all that were tried.
    """
    config = RepairConfig() if config is None else config
    build = config.build.on_backend(backend)
    config = replace(
        config,
        build=replace(build, precision=precision or build.precision),
        check=replace(config.check, data=data or config.check.data),
        max_builds=max_builds or config.max_builds,
        minutes=minutes or config.minutes,
        output=output or config.output,
    )
    result = search_repair(str(model), config, experiment)
    show_result(result)
    return result


if __name__ == "__main__":
    sys.exit(run(repair, "repair"))
