"""Promote: build a good build's tactics again, verify the engine, and register it as accepted."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build, BuildRequest, Caches, Engine, EngineBackend
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend, may_crash
from trtops.comparator.report import compare_outputs
from trtops.next_step import NextStep
from trtops.ops.arguments import checked_arguments
from trtops.ops.devices import BuildPlace, warm_backend
from trtops.ops.evaluation.check import CheckConfig, Evaluation, evaluate, log_evaluation, with_power
from trtops.ops.evaluation.data import collect, golden_outputs, scripts_of
from trtops.ops.evaluation.precision_check import PrecisionCheck, check_precision, log_kernels
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.registry.accepted import alias_of, register_accepted, registered_model
from trtops.ops.result import OpResult, OpRun, op_run, tracker_or_default
from trtops.record import Config, setting, with_options
from trtops.spec import BackendName
from trtops.system.allowed import ask_for
from trtops.system.worker import kept_workers
from trtops.tracking import builds, schema
from trtops.tracking.base import RunInfo, StoredRun, Tracker, Verdict, run_id_of
from trtops.tracking.builds import find_model, log_materials
from trtops.verdict import unmarked


@dataclass(frozen=True, kw_only=True)
class PromoteConfig(
    Config,
    uses={
        "check": "data input_shapes iterations seed val_range golden metric labels loss tolerances warm_up "
        "latency_runs min_precision_share power self_check"
    },
):
    """How a build is verified before it is accepted.

    Attributes:
        model: The ONNX file (default: the one that the run kept, or that it was built from).
        check: How the new engine is evaluated (default: as the campaign's builds, or else as the run's own).
        name: Registered model (default: the name of the run's model file, without its ending).
        timeout_seconds: Seconds that the build, and a first inference with it, may take. Not for FP32 on ONNX Runtime
            in a command, which needs no child process.
        devices: GPUs to build on, as ``CUDA_VISIBLE_DEVICES`` names them (default: those of that variable, or
            the first).
        allow_scripts: Run a data script that the campaign or the run names. Anyone with write access to the store can
            change it.
    """

    model: str | None = setting(None, file="reads")
    check: CheckConfig | None = None
    name: str | None = None
    timeout_seconds: float | None = 1800.0
    devices: tuple[str, ...] = ()
    allow_scripts: bool = False


@dataclass(frozen=True, kw_only=True)
class PromoteResult(OpResult):
    """An engine, built from the tactics of ``source_run``, and accepted if it is good.

    ``evaluation`` compares it with the golden outputs, ``agreement`` with the good run's own engine. The alias names
    model, device and release.
    """

    title: str = "promote"
    verdict: Verdict
    reasons: tuple[str, ...] = ()  # why it is refused
    source_run: str
    name: str
    alias: str
    version: str = ""  # empty until it is registered, as in the run, which ends before
    engine_sha256: str
    coverage: float
    built_elsewhere: bool = False
    evaluation: Evaluation
    agreement: Evaluation

    @property
    def headline(self) -> str:
        """``accepted``, ``refused``, ``verified`` before it is registered, or ``not registered``."""
        if self.verdict == "error":
            return "not registered"
        return "accepted" if self.version else "verified" if self.verdict == "good" else "refused"

    @property
    def exit_code(self) -> int:
        """0 if accepted, 1 if refused, 3 if the store failed."""
        return 3 if self.verdict == "error" else super().exit_code

    @property
    def next_step(self) -> NextStep | None:
        """The same promotion if the store failed when the engine was to be registered."""
        return NextStep("runs promote", {"run": self.source_run}) if self.verdict == "error" else super().next_step

    @property
    def figures(self) -> str:
        """Where it is registered."""
        return f"version {self.version} of {self.name!r}, alias {self.alias}" if self.version else ""

    def body(self) -> Iterable[str]:
        """Where it is registered, and how it was verified."""
        origin = f"built from run `{self.source_run}`; all replayable tactics ({self.coverage:.0%} of layers) followed"
        if self.built_elsewhere:
            origin = f"the engine of run `{self.source_run}` itself, which was built elsewhere"
        version = f"Version {self.version} of" if self.version else "Nothing is registered" if self.reasons else "For"
        return [
            f"{version} `{self.name}`, alias `{self.alias}`.",
            "",
            f"- {origin}",
            f"- agrees with the golden outputs: {self.evaluation.report.verdict}",
            f"- agrees with that run's engine: {self.agreement.report.verdict}",
        ]


@checked_arguments
@kept_workers()
def promote(
    run_id: str,
    config: PromoteConfig | None = None,
    *,
    tracker: Tracker | None = None,
    tags: Mapping[str, str] | None = None,
) -> PromoteResult:
    """Build from a good run's tactic record, verify it, and register it as the accepted engine.

    It is refused, and not registered, if it is not good, does not compute in the requested precision, or does not agree
    with the good run's engine. If the store fails when it is registered, the verdict is ``error``.

    Args:
        run_id: A good build's run, or a good iteration's.
        config: How to verify.
        tracker: The tracking store, and its registry.
        tags: Further tags of the run.

    Raises:
        AccessDeniedError: If the server's account may not register the engine.
        ConfigError: If the run is not good or holds no build.
        TacticMismatchError: If some tactic was not followed.
        IncompleteRunError: If the run is not complete.

    >>> check = trtops.CheckConfig(data="feed.npz")
    >>> build = trtops.convert("model.onnx", trtops.ConvertConfig(check=check))
    >>> trtops.promote(build.run_id).alias
    'model-..._device-..._onnxruntime-...'
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
    config = replace(config, name=registered_model(config.name or Path(path).stem))
    tracker.check_access(config.name)
    campaign = next((info for info in lineage if info.kind == "debug_build"), None)
    check = config.check
    if check is None:
        check = check_of(tracker, campaign or stored.info)
        ask_for((campaign or stored.info).id, scripts_of(check.data, *check.metric), (), allowed=config.allow_scripts)
    run_tags = {**(tags or {}), schema.Tag.EVIDENCE: run_id, schema.Tag.MODEL_PATH: path}
    name = f"promote {unmarked(stored.info.name)}"
    with op_run(tracker, stored.info.experiment, name, kind="promote", tags=run_tags) as op:
        result, build = _build_and_verify(stored, source, model, check, config, op)
    if result.verdict != "good":
        return result
    # Last, since a version has to be one of a complete run.
    try:
        version, _ = register_accepted(tracker, result.run_id, build, name=result.name, evidence=run_id)
    except errors.TrackingError as exc:
        return replace(result, verdict="error", reasons=(f"The engine is good, but it is not registered: {exc}",))
    return replace(result, version=version.version)


def check_of(tracker: Tracker, info: RunInfo) -> CheckConfig:
    """The check of a run or campaign: on its kept data and golden outputs, or else on their sources."""
    stored = tracker.load(info.id) if info.status == "finished" else None
    # A campaign in progress has no manifest yet.
    data = tracker.peek(info.id, schema.Artifact.MATERIALS) if stored is None else stored.get(schema.Artifact.MATERIALS)
    materials = builds.read_materials(data)
    assert materials is not None
    check = replace(CheckConfig.from_dict(materials.check), plots="never")
    if check.loss is None and check.labels is not None and not Path(check.labels).is_file():
        check = replace(check, labels=None, metric=())
    if stored is None:
        return check
    for material in materials.inputs:
        if material.name in ("data", "golden") and material.path in stored.manifest:
            check = with_options(check, {(material.name,): str(stored.local_path(material.path))})
    return check


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
    opened: AbstractContextManager[EngineBackend]
    built_elsewhere = source.spec.engine_sha256 is not None
    if built_elsewhere or build_place.backend == "tensorrt" or may_crash(build_config):
        opened = warm_backend(build_place.backend, build_place.devices, build_place.timeout_seconds)
    else:
        opened = nullcontext(engine_backend(build_place.backend))
    with opened as backend:
        caches, key, build = Caches(), None, source
        if not built_elsewhere:  # otherwise it is accepted itself
            caches = Caches.replaying(source.tactics, source.timing_cache, calibration=source.calibration_cache)
            # Raises unless all replayable tactics are followed.
            build = backend.build(BuildRequest(model, build_config, caches=caches))
            key = builds.build_key(build.spec, build.engine.environment)
        builds.log_spec(run, build.spec, build.engine.environment)
        feeds = check.open_for(model, profiles=build_config.profiles)
        log_materials(run, caches=caches, check=check, feeds=feeds, data=check.data, golden=check.golden)
        builds.log_build(run, build, model.info, backend.engine_suffix, key)
        for file in model.files():
            run.log_file(file, f"{schema.Artifact.MODEL}{file.name}")
        arguments = build, source.engine, model, check
        if isinstance(backend, IsolatedBackend):
            evaluation, agreement = backend.worker.run(_compare_engines, *arguments, timeout=backend.timeout)
        else:
            evaluation, agreement = _compare_engines(*arguments)
    evidence, params = evaluation.evidence, stored.info.params
    if evidence is not None and params.get("evidence.data") == evidence.data_sha256[: schema.DATA_DIGITS]:
        # The same data under its name there, instead of the place that this store keeps it at.
        evaluation = replace(evaluation, evidence=replace(evidence, source=params["evidence.source"]))
    log_evaluation(run, evaluation)
    log_kernels(run, build)
    verdict, reasons = _decide(evaluation, agreement, check_precision(build, check.min_precision_share))
    result = PromoteResult(
        verdict=verdict,
        reasons=reasons,
        source_run=stored.info.id,
        name=config.name or registered_model(model.name),
        alias=alias_of(model.info.sha256, build.engine.environment),
        engine_sha256=build.engine.sha256,
        coverage=build.tactics.coverage,
        built_elsewhere=built_elsewhere,
        evaluation=evaluation,
        agreement=agreement,
    )
    return op.finish(result, title=f"promote {unmarked(stored.info.name)}"), build


def _decide(
    evaluation: Evaluation, agreement: Evaluation, precision: PrecisionCheck
) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict on a new engine, and why it is refused."""
    for reference, comparison in (("golden outputs", evaluation), ("engine of the promoted run", agreement)):
        if comparison.verdict == "bad":
            disagreement = f"The new engine does not agree with the {reference}, although it follows the tactics"
            return "bad", (disagreement, *comparison.reasons)
    if not precision.lowered and not precision.emulation_counts:
        return "bad", (precision.reason(),)
    unproven = next((comparison for comparison in (evaluation, agreement) if comparison.verdict != "good"), None)
    return ("good", ()) if unproven is None else (unproven.verdict, unproven.reasons)


def _compare_engines(build: Build, other: Engine, model: Model, check: CheckConfig) -> tuple[Evaluation, Evaluation]:
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
    evaluation = with_power(evaluated[0], golden, check, tolerances)
    if check.tolerances is None:
        report = compare_outputs(right.aligned(evaluated[1]), right.aligned(expected), tolerances)
    else:
        report = compare_outputs(evaluated[1], expected, tolerances)
    return evaluation, Evaluation(report=report)
