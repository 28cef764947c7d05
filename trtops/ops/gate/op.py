"""The gate: compare a candidate with the accepted engine, and accept it, refuse it or leave it undecided."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.ratio import Metric
from trtops.next_step import arguments_of
from trtops.ops.evaluation.check import CheckConfig, EngineConfig, log_evaluation
from trtops.ops.gate.measurement import GateSession, Measurement, NotMeasuredError
from trtops.ops.gate.policy import Policy
from trtops.ops.gate.releases import HERE, name_of
from trtops.ops.gate.result import Finding, GateResult, evaluate_measured
from trtops.ops.gate.tolerance import BuildShare
from trtops.ops.registry.accepted import alias_of, register_accepted, registered_model
from trtops.ops.result import OpRun, model_file, op_run, run_step, tracker_or_default
from trtops.system.counters import count_instructions
from trtops.system.worker import close_workers
from trtops.tracking import builds, schema
from trtops.tracking.base import Tags, Tracker

R = TypeVar("R", bound=GateResult)


@dataclass(frozen=True, kw_only=True)
class GateConfig(EngineConfig, uses={"check": "data input_shapes iterations seed golden labels power self_check"}):
    """One candidate, and its policy, with the tolerances.

    Attributes:
        candidate: Run id of a candidate that exists; built now if None.
        accepted: Run id of the engine to compare with; if None, the last accepted one of this model,
            precision and device.
        policy: What is accepted.
        minutes: Time limit of the whole gate, builds included. A candidate that is not decided by then is undecided.
        metric: What is compared with the latency limit. ``auto`` is latency (``wall``) and, where a loaded machine
            leaves it open, the CPU time of engines on the CPU. ``instructions`` needs hardware counters.
        release: Constraints file of pip for the release that builds and runs the candidate; this environment if empty.
        others: Those of releases that the accepted engine may need, which runs with its own.
        devices: GPUs to measure on, as in ``CUDA_VISIBLE_DEVICES``; those of that variable, or the first, if empty.
        use_deny_list: Exclude tactics that are on the deny-list.
        name: Registered model; the name of the model file without its suffix if None.
        register: Whether an accepted candidate gets the alias.
        require_accepted: Refuse a candidate if there is no accepted engine to compare with; by default it is accepted
            for its comparison with the model.
        accept_unproven: Accept a candidate that was compared on data that cannot support a verdict, such as random
            values in shapes that were not given.
        keep_model: Log the model file with its external data.
        distribution: How many builds are gated, and which share of all builds must be within the limits.
        timeout_seconds: Time limit of a build and of each step of the measurement; None waits without limit.
    """

    candidate: str | None = None
    accepted: str | None = None
    check: CheckConfig = field(default_factory=lambda: CheckConfig(iterations=4, latency_runs=0, plots="never"))
    policy: Policy = field(default_factory=Policy)
    minutes: float = 5.0
    metric: Metric | Literal["auto"] = "auto"
    release: str = HERE
    others: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    use_deny_list: bool = True
    name: str | None = None
    register: bool = True
    require_accepted: bool = False
    accept_unproven: bool = False
    keep_model: bool = True
    distribution: BuildShare = field(default_factory=BuildShare)
    timeout_seconds: float | None = 1800.0

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise errors.ConfigError(f"minutes is {self.minutes}; expected more than 0.")
        if self.metric in ("cpu-time", "instructions") and self.build.backend != "onnxruntime":
            raise errors.ConfigError(f"The metric {self.metric} does not measure a GPU; expected auto or wall.")


def gate(
    model: str | Path,
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
    the metric cannot be measured on this machine. ``session``, if
    given, serves the next gate as well, which does not time equal engines again.
    """
    tracker = tracker_or_default(tracker)
    begin = time.perf_counter()
    path = model_file(model)
    if config.metric == "instructions":
        count_instructions()
    experiment = experiment or path.stem
    precision, release = config.build.precision, name_of(config.release)
    name = f"gate {path.stem} {precision} {config.build.backend} {release}"
    options = arguments_of(config.build) | arguments_of(config.check)
    with op_run(tracker, experiment, name, kind="gate", model=path, tags=tags, parent=parent) as op:
        run = op.run
        loaded = run_step("load", Model.load, path)
        config = replace(config, build=config.check.profiled(config.build, loaded, config.calibration_data))
        devices = ",".join(config.devices)
        limits = {"policy": config.policy.digest, "minutes": config.minutes, "metric": config.metric}
        run.log_params({"release": release, "devices": devices, **limits})
        findings: tuple[Finding, ...] = ()
        with contextlib.ExitStack() as stack:
            stack.callback(close_workers)
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
            subject=str(path),
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
            engine = measurement.holder
            log_evaluation(run, measured.evaluation, engine=engine)
            if measured.rounds is not None:
                run.log_metrics({(schema.Metric.LATENCY, "p50_ms"): measured.rounds.candidate_ms}, engine=engine)
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

    The run must have ended: the registry must not name an engine whose run is incomplete.
    """
    if result.decision != "accept" or not config.register:
        return result
    build, name = builds.load_build(tracker.load(result.holder)), config.name or Path(result.subject).stem
    # The alias names model and device. If an engine of another precision has it, this one gets an alias of its own.
    holder = tracker.registered(registered_model(name), alias_of(build.spec.model_sha256, build.engine.environment))
    precision = build.spec.config.precision
    taken = holder is not None and tracker.info(holder.run_id).params.get("precision", "") != precision
    suffix = f"_{precision}" if taken else ""
    version, alias = register_accepted(tracker, result.holder, build, name=name, evidence=result.run_id, suffix=suffix)
    return replace(result, version=version.version, alias=alias)
