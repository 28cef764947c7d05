"""Promote: build a good build's tactics again, verify the engine, and register it as accepted.

:func:`resolve` looks the accepted engine up, or explains what is missing.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build, Caches, Engine
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.comparator.report import compare_outputs
from trtops.ops.campaign.config import BuildPlace, DebugBuildConfig
from trtops.ops.campaign.workers import close_workers, warm_backend
from trtops.ops.evaluation.check import CheckConfig, Evaluation, evaluate, log_evaluation, with_power
from trtops.ops.evaluation.data import collect, golden_outputs, scripts_of
from trtops.ops.evaluation.limits import RightModel
from trtops.ops.evaluation.precision_check import check_precision, log_kernels
from trtops.ops.result import OpResult, OpRun, op_run, tracker_or_default
from trtops.record import Record, sha256, with_options
from trtops.spec import BackendName, BuildConfig, Environment, OnnxRuntimeOptions
from trtops.system.allowed import ask_for
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import RegisteredVersion, RunInfo, StoredRun, Tracker, Verdict, incomplete
from trtops.tracking.builds import find_model, log_materials
from trtops.tracking.records import run_id_of
from trtops.tracking.signatures import require_signed


@dataclass(frozen=True, kw_only=True)
class PromoteConfig(
    Record,
    uses={
        "check": "data input_shapes iterations seed golden labels tolerances warm_up latency_runs min_precision_share "
        "power self_check"
    },
):
    """How a build is verified before it is accepted.

    Attributes:
        model: The ONNX file (default: the one that the run kept, or that it was built from).
        check: How the new engine is evaluated (default: as the campaign's builds, or else as the run's own).
        name: Registered model (default: the name of the run's model file, without its ending).
        timeout_seconds: Seconds that the build, and a first inference with it, may take.
        devices: GPUs to build on, as ``CUDA_VISIBLE_DEVICES`` names them (default: those of that variable, or
            the first).
        allow_scripts: Run a data script that the campaign or the run names. Anyone with write access to the store can
            change it.
    """

    model: str | None = None
    check: CheckConfig | None = None
    name: str | None = None
    timeout_seconds: float | None = 1800.0
    devices: tuple[str, ...] = ()
    allow_scripts: bool = False


@dataclass(frozen=True, kw_only=True)
class PromoteResult(OpResult):
    """An accepted engine, built from the tactics of ``source_run``; the alias names model, device and release.

    ``evaluation`` compares it with the golden outputs, ``agreement`` with the good run's own engine.
    """

    title: str = "promote"
    source_run: str
    name: str
    alias: str
    version: str
    engine_sha256: str
    coverage: float
    evaluation: Evaluation
    agreement: Evaluation

    @property
    def verdict(self) -> Verdict:
        """Always ``good``: any other engine is an error, and not accepted."""
        return "good"

    @property
    def headline(self) -> str:
        """Always ``accepted``."""
        return "accepted"

    def body(self) -> Iterable[str]:
        """Where it is registered, and how it was verified."""
        return [
            f"Version {self.version} of `{self.name}`, alias `{self.alias}`.",
            "",
            f"- built from run `{self.source_run}`; all replayable tactics ({self.coverage:.0%} of layers) followed",
            f"- agrees with the golden outputs: {self.evaluation.report.verdict}",
            f"- agrees with that run's engine: {self.agreement.report.verdict}",
        ]


@dataclass(frozen=True, kw_only=True)
class Resolution(Record):
    """The accepted engine of a model on a device, or the reason why not."""

    name: str
    alias: str
    run_id: str | None = None
    version: str | None = None
    path: str | None = None  # the engine among the run's artifacts
    reason: str = ""  # why no engine is accepted, and what to do; empty otherwise
    engine_sha256: str | None = None
    accepted_by: str | None = None  # the user that MLflow's server authenticated; None without accounts
    signed_by: str | None = None  # the key that signed its run, where a signature was required

    def engine(self, tracker: Tracker) -> Engine:
        """Load the accepted engine, checked against its run's manifest."""
        if self.run_id is None:
            raise errors.ConfigError(self.reason)
        engine = builds.load_engine(tracker.load(self.run_id))
        if sha256(engine.plan) != self.engine_sha256:  # manifest and file may have been changed together since
            raise incomplete(self.run_id, f"its engine is not the one of digest {self.engine_sha256} that was resolved")
        return engine


def promote(
    run_id: str,
    config: PromoteConfig | None = None,
    *,
    tracker: Tracker | None = None,
    tags: Mapping[str, str] | None = None,
) -> PromoteResult:
    """Build from a good run's tactic record, verify it, and register it as the accepted engine.

    Args:
        run_id: A good build's run, or a good iteration's.
        config: How to verify.
        tracker: The tracking store, and its registry.
        tags: Further tags of the run.

    Raises:
        ConfigError: If the run is not good or holds no build, or the new engine is not good, does not compute in the
            requested precision, or does not agree with the good run's. Nothing is registered then.
        TacticMismatchError: If some tactic was not followed.
        IncompleteRunError: If the run is not complete.
    """
    tracker = tracker_or_default(tracker)
    config = PromoteConfig() if config is None else config
    run_id = run_id_of(run_id, tracker)
    stored = tracker.load(run_id)
    if stored.info.verdict == "unproven":
        evaluation = Evaluation.from_json(stored.read_bytes(schema.Artifact.ACCURACY))
        command = "trtops debug build" if stored.info.kind == "iteration" else "trtops convert"
        raise errors.ConfigError(
            f"Run {run_id} is unproven, and only good builds are promoted: {'; '.join(evaluation.reasons)}. Repeat "
            f"`{command}` with what is missing, and promote the new run."
        )
    if stored.info.verdict != "good":
        raise errors.ConfigError(
            f"Run {run_id} has the verdict {stored.info.verdict!r}; only good builds are promoted."
        )
    source = builds.load_build(stored)
    lineage = [stored.info]  # a proof's build has the proof and its campaign above it
    # Tags can be edited, so parents may form a circle.
    while (parent := lineage[-1].parent) is not None and parent not in {info.id for info in lineage}:
        lineage.append(tracker.info(parent))
    # A campaign names its model once, not in each of its runs.
    naming = next((info for info in lineage if info.fact(schema.Tag.MODEL_PATH)), stored.info)
    model = Model.load(find_model(tracker, naming, config.model))
    if model.info.sha256 != source.spec.model_sha256:
        raise errors.ConfigError(
            f"The model has digest {model.info.sha256[:12]}, and run {run_id} was built from "
            f"{source.spec.model_sha256[:12]}."
        )
    path = naming.fact(schema.Tag.MODEL_PATH) or str(model.path)
    config = replace(config, name=config.name or Path(path).stem)
    campaign = next((info for info in lineage if info.kind == "debug_build"), None)
    check = config.check
    if check is None:
        check = _check_of(tracker, campaign or stored.info)
        ask_for((campaign or stored.info).id, scripts_of(check.data), (), allowed=config.allow_scripts)
    run_tags = {**(tags or {}), schema.Tag.EVIDENCE: run_id, schema.Tag.MODEL_PATH: path}
    name = f"promote {stored.info.name}"
    try:
        with op_run(tracker, stored.info.experiment, name, kind="promote", tags=run_tags) as op:
            result, build = _build_and_verify(stored, source, model, check, config, op)
    finally:
        close_workers()
    # Last, since a version has to be one of a complete run.
    version, _ = register_accepted(tracker, result.run_id, build, name=result.name, evidence=run_id)
    return replace(result, version=version.version)


def _check_of(tracker: Tracker, info: RunInfo) -> CheckConfig:
    """The check of a run or campaign: on its kept data and golden outputs, or else on their sources."""
    if info.status != "finished":  # a campaign in progress
        data = campaigns.read_config(tracker, info)
        return (DebugBuildConfig() if data is None else DebugBuildConfig.from_json(data)).check
    stored = tracker.load(info.id)
    materials = builds.read_materials(stored.read_bytes(schema.Artifact.MATERIALS))
    assert materials is not None
    check = replace(CheckConfig.from_dict(materials.check), plots="never")
    if check.labels is not None and not Path(check.labels).is_file():
        check = replace(check, labels=None)
    logged_materials = [
        material
        for material in materials.inputs
        if material.name in ("data", "golden") and material.path in stored.manifest
    ]
    return with_options(
        check, {(material.name,): str(stored.local_path(material.path)) for material in logged_materials}
    )


def promotion_place(good_run: RunInfo, config: PromoteConfig) -> BuildPlace:
    """Where a good run's engine is built again."""
    built_by = good_run.tags.get(schema.Tag.BACKEND)
    backend: BackendName = "tensorrt" if built_by in ("tensorrt", "tensorrt-rtx") else "onnxruntime"
    return BuildPlace(backend=backend, devices=config.devices, timeout_seconds=config.timeout_seconds)


def _build_and_verify(
    stored: StoredRun,
    source: Build,
    model: Model,
    check: CheckConfig,
    config: PromoteConfig,
    op: OpRun,
) -> tuple[PromoteResult, Build]:
    run = op.run
    # The recorded tactics replace random ones.
    build_config = replace(source.spec.config, options=replace(source.spec.config.options, tactic_seed=None))
    build_place = promotion_place(stored.info, config)
    with warm_backend(build_place.backend, build_place.devices, build_place.timeout_seconds) as backend:
        caches = Caches.replaying(source.tactics, source.timing_cache, calibration=source.calibration_cache)
        build = backend.build(model, build_config, caches=caches)  # raises unless all replayable tactics are followed
        key = builds.build_key(build.spec, build.engine.environment)
        builds.log_spec(run, build.spec, build.engine.environment)
        feeds = check.open_for(model, profiles=build_config.profiles)
        log_materials(run, caches=caches, check=check, feeds=feeds, data=check.data, golden=check.golden)
        builds.log_build(run, build, backend.engine_suffix, key)
        for file in model.files():
            run.log_file(file, f"{schema.Artifact.MODEL}{file.name}")
        evaluation, agreement = backend.worker.run(
            _compare_in_child, build, source.engine, model, check, timeout=backend.timeout
        )
    log_evaluation(run, evaluation)
    log_kernels(run, build)
    for reference, comparison in (("golden outputs", evaluation), (f"engine of run {stored.info.id}", agreement)):
        if comparison.verdict == "bad":
            raise errors.ConfigError(
                f"The new engine does not agree with the {reference}: {'; '.join(comparison.reasons)[:1000]}. The "
                "tactics were followed, so the cause is not among those that can be replayed. Nothing was registered."
            )
        if comparison.verdict == "unproven":
            raise errors.ConfigError(
                f"The new engine is unproven: {'; '.join(comparison.reasons)}. Nothing was registered."
            )
    precision = check_precision(build, check.min_precision_share)
    if not precision.lowered and not precision.emulation_counts:
        raise errors.ConfigError(f"{precision.reason()} Nothing was registered.")
    result = PromoteResult(
        source_run=stored.info.id,
        name=registered_model(config.name or model.name),
        alias=alias_of(model.info.sha256, build.engine.environment),
        version="",
        engine_sha256=build.engine.sha256,
        coverage=build.tactics.coverage,
        evaluation=evaluation,
        agreement=agreement,
    )
    return op.finish(result, title=f"promote {stored.info.name}"), build


def _compare_in_child(build: Build, other: Engine, model: Model, check: CheckConfig) -> tuple[Evaluation, Evaluation]:
    """Evaluate an engine against golden outputs, and against another engine's outputs."""
    feeds = check.open_for(model, profiles=build.spec.config.profiles)
    backend = engine_backend(build.engine.backend)
    golden = golden_outputs(model, feeds, check.golden)
    right = RightModel(
        model=model,
        build=build.spec.config,
        feeds=feeds,
        golden=golden,
        golden_given=check.golden is not None,
        calibration=build.calibration_cache,
    )
    with backend.runner(build.engine) as runner:
        evaluated = evaluate(runner, golden, feeds, check, right)
    with backend.runner(other) as runner:
        expected = collect(runner, feeds)
    tolerances = right.tolerances(check.tolerances)
    evaluation = with_power(evaluated[0], model, feeds, golden, check, tolerances)
    if check.tolerances is None:
        report = compare_outputs(right.aligned(evaluated[1]), right.aligned(expected), tolerances)
    else:
        report = compare_outputs(evaluated[1], expected, tolerances)
    return evaluation, Evaluation(report=report)


def register_accepted(
    tracker: Tracker, run_id: str, build: Build, *, name: str, evidence: str, suffix: str = ""
) -> tuple[RegisteredVersion, str]:
    """Register the engine of a complete run as the accepted one; returns the version and its alias.

    ``evidence`` is the run that is the reason. ``suffix`` is appended to the usual alias, for an engine that is
    accepted in addition to the usual one.
    """
    environment = build.engine.environment
    alias = alias_of(build.spec.model_sha256, environment) + suffix
    path = builds.engine_path(tracker.load(run_id))
    tags = {
        schema.Tag.MODEL_SHA256: build.spec.model_sha256,
        schema.Tag.ENGINE_SHA256: build.engine.sha256,
        schema.Tag.EVIDENCE: evidence,
        schema.Tag.COMPUTES_IN: check_precision(build).name,
        **builds.environment_tags(environment),
    }
    return tracker.register(registered_model(name), run_id, path, alias=alias, tags=tags), alias


def registered_model(name: str) -> str:
    """A name for the registry: ``/`` and ``:`` become ``-2f-`` and ``-3a-``."""
    # MLflow rejects names with these characters; 250 is below the length of its column.
    return name.replace("/", "-2f-").replace(":", "-3a-")[:250]


def alias_of(model_sha256: str, environment: Environment) -> str:
    """The alias of the engine accepted for a model, a kind of device and a back end's release."""
    release = re.sub(r"[^A-Za-z0-9]+", "-", f"{environment.backend}-{environment.backend_version}")
    return f"model-{model_sha256[:12]}_device-{environment.device_sha256[:12]}_{release}"


def resolve(
    model: str | Path | Model,
    *,
    tracker: Tracker | None = None,
    backend: str = "onnxruntime",
    providers: Sequence[str] = (),
    environment: Environment | None = None,
    name: str | None = None,
    keys: Sequence[str | Path] = (),
) -> Resolution:
    """Look up the accepted engine of a model, and check every file of it against its run's manifest. Builds nothing.

    An engine registered under another name is found by the model's digest; of several, the newest that can be used.

    Args:
        model: The ONNX file.
        tracker: The tracking store, and its registry.
        backend: The back end that is to run it.
        providers: ONNX Runtime's execution providers; the first decides the device.
        environment: The device and release (default: this machine's).
        name: The registered model that is searched first (default: the file's name without its ending).
        keys: Public keys, as PEM files: the engine's run must be signed with one of them.
    """
    tracker = tracker_or_default(tracker)
    loaded_model = model if isinstance(model, Model) else Model.load(model)
    build = BuildConfig(options=OnnxRuntimeOptions(providers=tuple(providers))) if providers else None
    current = engine_backend(backend).environment(build) if environment is None else environment
    resolution = Resolution(
        name=registered_model(name or loaded_model.name), alias=alias_of(loaded_model.info.sha256, current)
    )
    try:
        named = tracker.registered(resolution.name, resolution.alias)
    except errors.StoreError as exc:
        return replace(resolution, reason=str(exc))
    same_model = {} if named is not None else {schema.Tag.MODEL_SHA256: loaded_model.info.sha256}
    others = (
        [candidate for alias, candidate in tracker.accepted(same_model) if alias == resolution.alias]
        if same_model
        else []
    )
    checked = [
        _check_version(resolution, candidate, loaded_model, tracker, keys)
        for candidate in (*filter(None, (named,)), *others)
    ]
    if checked:
        return max(
            checked, key=lambda candidate: tracker.info(candidate.run_id).start_time if candidate.run_id else 0.0
        )
    accepted = ", ".join(sorted(tracker.aliases(resolution.name))) or "none"
    reason = (
        f"No engine of this model, named {resolution.name!r} or otherwise, is accepted for {current.device}, "
        f"{current.backend} {current.backend_version} (alias {resolution.alias}). Accepted engines of that "
        f"name: {accepted}. Promote a good run made here."
    )
    return replace(resolution, reason=reason)


def _check_version(
    resolution: Resolution, version: RegisteredVersion, model: Model, tracker: Tracker, keys: Sequence[str | Path]
) -> Resolution:
    """The resolution with a registered version, or with the reason why it cannot be used."""
    resolution = replace(resolution, name=version.name)
    try:
        stored = tracker.load(version.run_id)
        signed_by = require_signed(stored, keys) if keys else None
        engine_sha256 = sha256(stored.read_bytes(version.path))
    except (errors.IncompleteRunError, errors.RunNotFoundError, errors.SignatureError) as exc:
        return replace(resolution, reason=f"Version {version.version} of {resolution.name!r} cannot be used: {exc}")
    # Anybody who can write to the registry can register a version. Run and version have to agree on what it is.
    promised = {schema.Tag.ENGINE_SHA256: engine_sha256, schema.Tag.MODEL_SHA256: model.info.sha256}
    for tag, value in promised.items():
        if version.tags.get(tag) != value or stored.info.tags.get(tag) != value:
            subject = "engine" if tag == schema.Tag.ENGINE_SHA256 else "model"
            return replace(
                resolution,
                reason=f"Version {version.version} of {resolution.name!r} is of another {subject} than run "
                f"{version.run_id} holds; it was not registered by promoting. Promote a good run.",
            )
    return replace(
        resolution,
        run_id=version.run_id,
        version=version.version,
        path=version.path,
        engine_sha256=engine_sha256,
        accepted_by=version.tags.get(schema.Tag.ACCEPTED_BY),
        signed_by=signed_by,
    )
