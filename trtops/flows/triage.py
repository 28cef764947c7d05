"""The triage flow: from a bad engine to the kind of fault, its place, and the smallest case that shows it.

From Python: ``from trtops.flows.triage import triage; triage("model.onnx", config)``. From the shell: ``python -m trtops.flows.triage
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
from trtops.ops.triaging.op import triage as triage_op
from trtops.ops.triaging.result import TriageConfig, TriageResult
from trtops.spec import BackendName, Precision


@trtops_task(name="ask")
def ask(model: str | None, config: TriageConfig, resume: str | None, experiment: str | None) -> TriageResult:
    """One call of the triage op, logged to the default store, on a GPU of its own if it needs one."""
    with current_slot(config.build.backend):
        return triage_op(model, config, tracker=tracker(), resume=resume, experiment=experiment, tags=flow_tags())


@trtops_flow(name="triage")
def triage(
    model: Path | None = None,
    config: Annotated[TriageConfig | None, config_flag] = None,
    *,
    backend: BackendName | None = None,
    precision: Precision | None = None,
    data: str | None = None,
    golden_model: str | None = None,
    minutes: Positive | None = None,
    resume: str | None = None,
    experiment: str | None = None,
) -> TriageResult:
    """Find out why an engine is bad, one question after the other, and keep each answer with its evidence and cost.

    Args:
        model: The ONNX file; of a triage to resume its own unless given.
        config: Everything that can be chosen; what is given beside it takes its place.
        backend: What builds the engine; onnxruntime unless given.
        precision: The precision asked for; fp32 unless given.
        data: Where inputs come from; random unless given.
        golden_model: A model that is right; tensors are matched by their names.
        minutes: No question is begun after so many minutes; no limit unless given.
        resume: A triage's run that was stopped or killed.
        experiment: MLflow experiment; the model's name unless given.

    Returns:
        The questions with their answers, and what follows.
    """
    config = TriageConfig() if config is None else config
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
    sys.exit(run(triage, "triage"))
