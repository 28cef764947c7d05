"""Gate: one candidate against the engine that is accepted. Accepts it, refuses it with reasons, or asks for more measurement."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trtops.backend.onnx.model import Model
from trtops.ops.campaign.benches import close_benches
from trtops.ops.gate.accepted import accept
from trtops.ops.gate.config import GateConfig
from trtops.ops.gate.findings import evaluate_measured
from trtops.ops.gate.result import GateResult, log_result
from trtops.ops.gate.trial import RefusedError, Trial
from trtops.ops.result import finish_with, model_file, op_run
from trtops.tracking.registry import RegisteringTracker


def gate(
    model: str | Path,
    config: GateConfig | None = None,
    *,
    tracker: RegisteringTracker,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
) -> GateResult:
    """Build a candidate, measure it beside the accepted engine, and accept it, refuse it, or ask for more measurement.

    Both engines run in processes of their own, each with its own release, on the same device.

    Args:
        model: The candidate's ONNX file.
        config: What to build, and what it has to pass.
        tracker: The memory, and its registry.
        experiment: Experiment to log to; the model file's name without its ending unless given.
        tags: Further tags of the run.
        parent: Id of a parent run.

    Returns:
        The decision with its reasons. A release that cannot be installed, a device that is not there, a build that fails and
        an engine that does not run are refusals.

    Raises:
        TrtopsError: If the model, the data or the config cannot be used, or the memory does not answer.
    """
    config = GateConfig() if config is None else config
    begun = time.perf_counter()
    path = model_file(model)
    experiment = experiment or path.stem
    precision, release = config.build.precision, config.release.name
    name = f"gate {path.stem} {precision} {config.build.backend} {release}"
    result = GateResult(
        title=f"gate {path.name} {precision} {release}",
        subject=str(path),
        findings=(),
        policy=config.policy,
        precision=precision,
        release=release,
        device=",".join(config.devices),
    )
    with op_run(tracker, experiment, name, kind="gate", model=path, tags=tags, parent=parent) as run:
        run.log_params({"release": release, "policy": config.policy.digest, "devices": ",".join(config.devices)})
        loaded = Model.load(path)
        trial = Trial(loaded, config, run, tracker)
        result = replace(_evaluated_result(result, trial), seconds=time.perf_counter() - begun).kept_in(run, experiment)
        log_result(run, result)
        finish_with(run, result, tracker)
    if result.decision == "accept" and config.register and trial.build is not None and trial.holder:
        version, alias = accept(
            tracker, trial.holder, trial.build, name=config.name or loaded.name, evidence=result.run_id
        )
        result = replace(result, version=version.version, alias=alias)
    return result


def _evaluated_result(result: GateResult, trial: Trial) -> GateResult:
    """The result with what was measured and found."""
    try:
        measured = trial.measure()
    except RefusedError as exc:
        return replace(result, findings=(exc.finding,), holder=trial.holder)
    finally:
        close_benches()
    findings = evaluate_measured(measured, result.policy)
    return replace(result, measured=measured, findings=findings, holder=trial.holder)
