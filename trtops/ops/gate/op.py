"""The gate: compare a candidate with the accepted engine, and accept it, refuse it or leave it undecided."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.torch import model_stem
from trtops.next_step import arguments_of
from trtops.ops.arguments import checked_arguments
from trtops.ops.engines.request import check_names
from trtops.ops.evaluation.check import log_evaluation
from trtops.ops.gate.findings import Finding, evaluate_measured
from trtops.ops.gate.measurement import GateSession, Measurement, NotMeasuredError
from trtops.ops.gate.policy import GateConfig
from trtops.ops.gate.releases import name_of
from trtops.ops.gate.result import GateResult
from trtops.ops.registry.accepted import alias_of, register_accepted, registered_model
from trtops.ops.result import OpRun, model_file, model_source, op_run, run_step, tracker_or_default
from trtops.system.counters import count_instructions
from trtops.system.worker import kept_workers
from trtops.tracking import builds, schema
from trtops.tracking.base import Tags, Tracker

R = TypeVar("R", bound=GateResult)


@checked_arguments
@kept_workers()
def gate(
    model: str | Path | Model,
    config: GateConfig = GateConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    session: GateSession | None = None,
) -> GateResult:
    """Build a candidate, compare it with the accepted engine, and decide by a policy.

    Both engines run in their own processes, each with its own release, on the same device. A release that cannot be
    installed, a missing device, a failed build and an engine that does not run are refusals. UnsupportedFeatureError if
    the metric cannot be measured on this machine. ``session`` serves several gates, which do not time equal engines
    again.

    The first engine of a model is accepted for its comparison with the model, and gets an alias:

    >>> config = GateConfig(check=trtops.CheckConfig(data="feed.npz"))
    >>> gate("model.onnx", config).alias
    'model-..._device-...'

    The next one is compared with it:

    >>> result = gate("model.onnx", config)
    >>> result.decision, result.measured.same_engine
    ('accept', True)
    """
    tracker = tracker_or_default(tracker)
    begin = time.perf_counter()
    path = model_file(model)
    if config.clock == "instructions":
        count_instructions()
    if config.register:
        tracker.check_access(registered_model(config.name or path.stem))
    experiment = experiment or path.stem
    precision, release = config.build.precision, name_of(config.release)
    name = f"gate {path.stem} {precision} {config.build.backend} {release}"
    options = arguments_of(config.build) | arguments_of(config.check)
    with op_run(tracker, experiment, name, kind="gate", model=path, tags=tags, parent=parent) as op:
        run = op.run
        loaded = run_step("load", Model.load, model)
        check_names(loaded, config.build, config.check)
        config = replace(config, build=config.check.profiled(config.build, loaded, config.calibration_data))
        devices = ",".join(config.devices)
        limits = {"policy": config.policy.digest, "minutes": config.minutes, "clock": config.clock}
        run.log_params({"release": release, "devices": devices, **limits})
        findings: tuple[Finding, ...] = ()
        with contextlib.ExitStack() as stack:
            session = session or stack.enter_context(GateSession())
            measurement = Measurement(loaded, config, run, tracker, session)
            try:
                measurement.measure()
            except NotMeasuredError as exc:
                findings = (exc.finding,)
        measured = measurement.measured
        if measured is not None:  # as far as it is complete: the subject that stopped has its reason already
            evaluated = evaluate_measured(measured, config.policy, accept_unproven=config.accept_unproven)
            # Without all of its measurements, an accepted engine is not "none".
            ended = {finding.subject for finding in findings} | ({"accepted"} if findings else set())
            findings += tuple(finding for finding in evaluated if finding.subject not in ended)
        result = GateResult(
            title=f"gate {path.name} {precision} {release}",
            subject=model_source(model),
            findings=findings,
            policy=config.policy,
            precision=precision,
            options=options,
            release=release,
            measured=measured,
            holder=measurement.holder,
            seconds=time.perf_counter() - begin,
        )
        if measured is not None:
            log_evaluation(run, measured.evaluation, engine=measurement.holder)
        result = end_gate(op, result)
    return registered(result, config, tracker)


def approve(
    result: GateResult,
    config: GateConfig,
    *,
    accept: bool,
    person: str,
    reason: str,
    tracker: Tracker,
    tags: Tags | None = None,
) -> GateResult:
    """Decide an undecided gate as a person did, in a run of its own, and register an accepted engine.

    Raises ConfigError if the gate is not undecided, or has no engine.
    """
    if result.decision != "undecided" or not result.holder:
        raise errors.ConfigError(f"Gate {result.run_id} needs no approval: {result.headline}.")
    findings = tuple(
        replace(finding, outcome="note") if finding.outcome == "open" else finding for finding in result.findings
    )
    answer = Finding("approval", "pass" if accept else "refuse", f"{person} decided: {reason}")
    approval_tags = {**(tags or {}), schema.Tag.EVIDENCE: result.holder}
    with op_run(tracker, result.experiment, f"approval of {result.title}", kind="gate", tags=approval_tags) as op:
        op.run.log_params({"decides": result.run_id, "person": person, "reason": reason})
        result = replace(result, findings=(*findings, answer))
        if result.measured is not None:
            log_evaluation(op.run, result.measured.evaluation, engine=result.holder)
        result = end_gate(op, result)
    return registered(result, config, tracker)


def end_gate(op: OpRun, result: R) -> R:
    """Log the decision with all numbers, and end the run."""
    op.run.log_metrics(result.metrics(), engine=result.holder)
    op.run.set_tags({schema.Tag.GATE: result.decision})
    return op.finish(result, artifact=schema.Artifact.GATE)


def registered(result: R, config: GateConfig, tracker: Tracker) -> R:
    """Register the engine of an accepted candidate, unless the config forbids it; the result with version and alias.

    A failure of the store is a finding, so that the decisions on other candidates stay.
    The run must have ended: the registry must not name an engine whose run is incomplete.
    """
    if result.decision != "accept" or not config.register:
        return result
    try:
        build, name = builds.load_build(tracker.load(result.holder)), config.name or model_stem(result.subject)
        # The alias names model and device. If an engine of another precision has it, this one gets an alias of its own.
        holder = tracker.registered(registered_model(name), alias_of(build.spec.model_sha256, build.engine.environment))
        precision = build.spec.config.precision
        taken = holder is not None and tracker.info(holder.run_id).params.get("precision", "") != precision
        version, alias = register_accepted(
            tracker, result.holder, build, name=name, evidence=result.run_id, suffix=f"_{precision}" if taken else ""
        )
    except errors.TrackingError as exc:
        finding = Finding("registration", "error", f"the candidate is accepted, but not registered: {exc}")
        return replace(result, findings=(*result.findings, finding))
    return replace(result, version=version.version, alias=alias)
