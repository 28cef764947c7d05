"""The guide flow: from a bad engine to the kind of fault, its place, and the smallest case that shows it.

From Python: ``from trtops.flows.guide import guide; guide("model.onnx", config)``. From the shell: ``python -m trtops.flows.guide
model.onnx --minutes 30``, and with ``--resume <run>`` what was stopped. As a deployment: see ``prefect.yaml``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trtops.flows.artifacts import show_result
from trtops.flows.command import config_flag, run
from trtops.flows.parameters import Positive
from trtops.flows.slots import current_slot
from trtops.flows.tasks import flow_tags, tracker, trtops_flow, trtops_task
from trtops.ops.guiding.config import GuideConfig
from trtops.ops.guiding.op import guide as guide_op
from trtops.ops.guiding.result import GuideResult
from trtops.spec import BackendName, Precision


@trtops_task(name="ask")
def ask(model: str | None, config: GuideConfig, resume: str | None, experiment: str | None) -> GuideResult:
    """One call of the guide op, logged to the default store, on a GPU of its own if it needs one."""
    with current_slot(config.build.backend):
        return guide_op(model, config, tracker=tracker(), resume=resume, experiment=experiment, tags=flow_tags())


@trtops_flow(name="guide")
def guide(
    model: Path | None = None,
    config: Annotated[GuideConfig | None, config_flag] = None,
    *,
    backend: BackendName | None = None,
    precision: Precision | None = None,
    data: str | None = None,
    golden_model: str | None = None,
    minutes: Positive | None = None,
    resume: str | None = None,
    experiment: str | None = None,
) -> GuideResult:
    """Find out why an engine is bad, one question after the other, and keep each answer with its evidence and cost.

    Args:
        model: The ONNX file; of a guide to resume its own unless given.
        config: Everything that can be chosen; what is given beside it takes its place.
        backend: What builds the engine; onnxruntime unless given.
        precision: The precision asked for; fp32 unless given.
        data: Where inputs come from; random unless given.
        golden_model: A model that is right; tensors are matched by their names.
        minutes: No question is begun after so many minutes; no limit unless given.
        resume: A guide's run that was stopped or killed.
        experiment: MLflow experiment; the model's name unless given.

    Returns:
        The questions with their answers, and what follows.
    """
    config = GuideConfig() if config is None else config
    build = config.build.on_backend(backend)
    build = replace(build, precision=precision or build.precision)
    check = replace(config.check, data=data or config.check.data)
    config = replace(
        config,
        build=build,
        check=check,
        golden_model=golden_model or config.golden_model,
        minutes=minutes or config.minutes,
    )
    result = ask(None if model is None else str(model), config, resume, experiment)
    show_result(result)
    return result


if __name__ == "__main__":
    sys.exit(run(guide, "guide"))
