"""Promote: pin a good build. Build again what it chose, verify it, and register it as the accepted engine of its device.

And the way back: :func:`resolve` says which engine is accepted for a model here, or why none is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.allowed import ask_for
from trtops.backend.base import Build, Caches, Engine
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.ops.campaign.benches import bench, close_benches
from trtops.ops.campaign.config import DebugBuildConfig, Place
from trtops.ops.campaign.iteration import compare_in_child
from trtops.ops.campaign.opened import find_model
from trtops.ops.evaluation.check import CheckConfig, Evaluation, log_evaluation
from trtops.ops.evaluation.feeds import scripts_of
from trtops.ops.evaluation.precision_check import PrecisionCheck, check_precision, log_kernels
from trtops.ops.result import OpResult, finish_with, op_run
from trtops.record import Record, sha256
from trtops.spec import BackendName, Environment
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import RegisteredVersion, Run, RunInfo, StoredRun, Tracker, Verdict, incomplete
from trtops.tracking.materials import log_materials
from trtops.tracking.signatures import require_signed

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PromoteConfig(Record):
    """How a build is verified before it is accepted.

    Attributes:
        model: The ONNX file; where the run found it, or else the one it kept, unless given.
        check: How the new engine is evaluated; as the campaign evaluated its builds unless given.
        name: Registered model; the name of the model file without its ending unless given.
        timeout_seconds: How long the build, and a first inference with it, may take.
        devices: GPUs to build on, as ``CUDA_VISIBLE_DEVICES`` names them; those of that variable, or the first, unless given.
        allow_scripts: Run a data script that the campaign's run names, which whoever may write to the store can change.
    """

    model: str | None = None
    check: CheckConfig | None = None
    name: str | None = None
    timeout_seconds: float | None = 1800.0
    devices: tuple[str, ...] = ()
    allow_scripts: bool = False


@dataclass(frozen=True, kw_only=True)
class PromoteResult(OpResult):
    """An accepted engine.

    Attributes:
        source_run: The good run that it was built from.
        name: The registered model.
        alias: The alias: model, device and back end release.
        version: The registered version.
        engine_sha256: Digest of the engine.
        same_bytes: Whether it is the good run's engine byte for byte; a bonus, and no condition.
        coverage: Share of layers whose tactic was prescribed and followed.
        evaluation: Against the golden outputs.
        agreement: Against the good run's own engine.
    """

    title: str = "promote"
    source_run: str
    name: str
    alias: str
    version: str
    engine_sha256: str
    same_bytes: bool
    coverage: float
    evaluation: Evaluation
    agreement: Evaluation

    @property
    def verdict(self) -> Verdict:
        """Always ``good``: what is not good is not accepted, and an error."""
        return "good"

    @property
    def headline(self) -> str:
        """That it is accepted."""
        return "accepted"

    def body(self) -> Iterable[str]:
        """Where it is registered, and what it was verified by."""
        return [
            f"Version {self.version} of `{self.name}`, alias `{self.alias}`.",
            "",
            f"- built from run `{self.source_run}`; every tactic that can be prescribed ({self.coverage:.0%} of layers) followed",
            f"- agrees with the golden outputs: {self.evaluation.report.verdict}",
            f"- agrees with that run's engine: {self.agreement.report.verdict}",
            f"- the same bytes: {'yes' if self.same_bytes else 'no'}",
        ]


@dataclass(frozen=True, kw_only=True)
class Resolution(Record):
    """The accepted engine of a model on a device, or why there is none.

    Attributes:
        name: The registered model that was asked for.
        alias: The alias that was asked for.
        run_id: The run that holds the engine; None if there is none.
        version: The registered version; None likewise.
        path: The engine among the run's artifacts; None likewise.
        why: Why there is none, and what to do; empty if there is one.
        engine_sha256: Digest of the engine as it was found; None if there is none.
        signed_by: The key that signed its run, where a signature was demanded.
    """

    name: str
    alias: str
    run_id: str | None = None
    version: str | None = None
    path: str | None = None
    why: str = ""
    engine_sha256: str | None = None
    signed_by: str | None = None

    def engine(self, tracker: Tracker) -> Engine:
        """The accepted engine, checked against its run's manifest.

        Raises:
            ConfigError: If there is none; the message says why.
            IncompleteRunError: If its bytes are not those that were registered.
        """
        if self.run_id is None:
            raise errors.ConfigError(self.why)
        engine = builds.load_engine(tracker.load(self.run_id))
        if sha256(engine.plan) != self.engine_sha256:  # manifest and file may have been changed together since
            raise incomplete(self.run_id, f"its engine is not the one of digest {self.engine_sha256} that was resolved")
        return engine


def promote(
    run_id: str,
    config: PromoteConfig | None = None,
    *,
    tracker: Tracker,
    tags: Mapping[str, str] | None = None,
) -> PromoteResult:
    """Build from a good run's tactic record, verify it, and register it as the accepted engine.

    A promotion of the same run on this kind of device that was killed before it was registered is registered now.

    Args:
        run_id: A good build's run, or a good iteration's, or what its id begins with.
        config: How to verify.
        tracker: The memory, and its registry.
        tags: Further tags of the run.

    Raises:
        ConfigError: If the run is not good or holds no build, or the new engine is not good, does not compute in the
            precision asked for, or does not agree with the good run's. Nothing is registered then.
        TacticMismatchError: If some tactic was not followed.
        IncompleteRunError: If the run is not whole.
    """
    config = PromoteConfig() if config is None else config
    run_id = tracker.whole_id(run_id)
    stored = tracker.load(run_id)
    if stored.info.verdict != "good":
        raise errors.ConfigError(
            f"Run {run_id} has the verdict {stored.info.verdict!r}; only good builds are promoted."
        )
    source = builds.load_build(builds.holder_of_engine(tracker, stored.info))
    # The build's own run knows where its model is, or else its campaign's does.
    ancestors = _run_and_ancestors(tracker, stored.info)
    knowing = next((info for info in ancestors if schema.Tag.MODEL_PATH in info.tags), stored.info)
    model = Model.load(find_model(tracker, knowing, config.model))
    if model.info.sha256 != source.spec.model_sha256:
        raise errors.ConfigError(
            f"The model has digest {model.info.sha256[:12]}, and run {run_id} was built from {source.spec.model_sha256[:12]}."
        )
    if (left := _promotion_left(stored.info, model, config, tracker)) is not None:
        return _register_promotion(*left, tracker)
    name = f"promote {stored.info.name}"
    own = {**(tags or {}), schema.Tag.EVIDENCE: run_id}
    try:
        with op_run(tracker, stored.info.experiment, name, kind="promote", tags=own) as run:
            return _build_and_register(stored, source, model, config, run, tracker)
    finally:
        close_benches()


def promotion_place(good_run: RunInfo, config: PromoteConfig) -> Place:
    """Where a good run's engine is built again."""
    built_by = good_run.tags.get(schema.Tag.BACKEND)
    backend: BackendName = "tensorrt" if built_by in ("tensorrt", "tensorrt-rtx") else "onnxruntime"
    return Place(backend=backend, devices=config.devices, timeout_seconds=config.timeout_seconds)


def _build_and_register(
    stored: StoredRun, source: Build, model: Model, config: PromoteConfig, run: Run, tracker: Tracker
) -> PromoteResult:
    check = config.check or _check_config_of(tracker, stored.info, config.allow_scripts)
    options = replace(source.spec.config.options, tactic_seed=None)
    wanted = replace(source.spec.config, options=options)
    with bench(promotion_place(stored.info, config)) as backend:
        caches = Caches.replaying(source.tactics, source.timing_cache, calibration=source.calibration_cache)
        build = backend.build(model, wanted, caches=caches)
        _check_followed(source.tactics, build.tactics)
        builds.log_spec(run, build.spec, build.engine.environment)
        feeds = check.open_for(model)
        log_materials(run, caches=caches, check=check, feeds=feeds, data=check.data, golden=check.golden)
        run.set_tags({schema.Tag.MODEL_PATH: str(model.path)})
        builds.log_build(run, build, backend.engine_suffix)
        for file in model.files():
            run.log_file(file, f"{schema.Artifact.MODEL}{file.name}")
        evaluation, agreement = backend.worker.run(
            compare_in_child, build.engine, source.engine, model, check, wanted, timeout=backend.timeout
        )
    log_evaluation(run, evaluation)
    log_kernels(run, build)
    _check_good(evaluation, agreement, stored.info.id)
    _check_precision(check_precision(build, model, check.min_precision_share))
    result = PromoteResult(
        source_run=stored.info.id,
        name=registered_model(config.name or model.name),  # as resolve() looks it up
        alias=alias_of(model.info.sha256, build.engine.environment),
        version="",
        engine_sha256=build.engine.sha256,
        same_bytes=build.engine.plan == source.engine.plan,
        coverage=build.tactics.coverage,
        evaluation=evaluation,
        agreement=agreement,
    )
    run.log_json(result, schema.Artifact.PROMOTION)
    finish_with(run, result, tracker, title=f"promote {stored.info.name}")
    return _register_promotion(result.kept_in(run, stored.info.experiment), build, tracker)


def _register_promotion(result: PromoteResult, build: Build, tracker: Tracker) -> PromoteResult:
    """Make an engine that was verified the accepted one."""
    version, _ = register_accepted(tracker, result.run_id, build, name=result.name, evidence=result.source_run)
    return replace(result, version=version.version)


def _promotion_left(
    source: RunInfo, model: Model, config: PromoteConfig, tracker: Tracker
) -> tuple[PromoteResult, Build] | None:
    """A promotion of a run that was verified as it is asked for now, and killed before it was registered."""
    if config.check is not None:
        return None
    for info in tracker.find(source.experiment, tags={schema.Tag.KIND: "promote", schema.Tag.EVIDENCE: source.id}):
        info = campaigns.closed_if_abandoned(tracker, info, "its process ended in the middle of the promotion")
        if info.status != "finished" or info.verdict != "good":
            continue
        try:
            stored = tracker.load(info.id)
            if schema.Artifact.PROMOTION not in stored.manifest:
                continue  # of an earlier release
            result = PromoteResult.from_json(stored.read_bytes(schema.Artifact.PROMOTION))
            build = builds.load_build(stored)
        except (errors.IncompleteRunError, errors.FormatError) as exc:
            log.warning("An earlier promotion is not completed: %s", exc)
            continue
        with bench(promotion_place(source, config)) as backend:
            here = alias_of(model.info.sha256, backend.environment())
        asked = (registered_model(config.name or model.name), here)
        if (result.name, result.alias) == asked and tracker.registered(*asked) is None:
            return replace(result, run_id=info.id, url=info.url, experiment=info.experiment), build
    return None


def register_accepted(
    tracker: Tracker, run_id: str, build: Build, *, name: str, evidence: str, suffix: str = ""
) -> tuple[RegisteredVersion, str]:
    """Register the engine of a whole run as the accepted one, as :func:`resolve` looks it up.

    Args:
        tracker: The memory, and its registry.
        run_id: The run that holds the engine.
        build: What it holds.
        name: What the registered model is called, in any spelling.
        evidence: Id of the run that is the reason.
        suffix: What follows the usual alias, of an engine that is accepted beside the one that has it.

    Returns:
        The version, and its alias.
    """
    alias = alias_of(build.spec.model_sha256, build.engine.environment) + suffix
    path = builds.engine_path(tracker.load(run_id))
    tags = _version_tags(build, evidence)
    return tracker.register(registered_model(name), run_id, path, alias=alias, tags=tags), alias


def _check_followed(wanted: TacticRecord, got: TacticRecord) -> None:
    """Every tactic that can be prescribed must have been followed; back ends check it too, and this is the last word."""
    prescribed = replace(wanted, choices=tuple(choice for choice in wanted.choices if choice.replayable))
    names = {choice.layer for choice in prescribed.choices}
    made = replace(got, choices=tuple(choice for choice in got.choices if choice.layer in names))
    differing = prescribed.differing_layers(made)
    if differing or set(wanted.settings) - set(got.settings):
        raise errors.TacticMismatchError(
            f"The tactic record was not followed in {len(differing)} of {len(names)} layers"
            f"{': ' + ', '.join(differing[:5]) if differing else ', but some settings differ'}. Nothing was registered.",
            differing,
        )


def _check_good(evaluation: Evaluation, agreement: Evaluation, source: str) -> None:
    for what, found in (("golden outputs", evaluation), (f"engine of run {source}", agreement)):
        if found.report.verdict != "good":
            raise errors.ConfigError(
                f"The new engine does not agree with the {what}: {'; '.join(found.report.reasons)[:1000]}. The tactics were "
                "followed, so what decides is not among those that can be replayed. Nothing was registered."
            )


def _check_precision(found: PrecisionCheck) -> None:
    if not found.lowered and not found.emulation_counts:
        raise errors.ConfigError(f"{found.reason()} Nothing was registered.")


def _run_and_ancestors(tracker: Tracker, info: RunInfo) -> Iterator[RunInfo]:
    """A run, and the runs above it: a proof's build has the proof and its campaign above it."""
    known = {info.id}
    yield info
    while info.parent is not None and info.parent not in known:  # which a forged one would be
        info = tracker.info(info.parent)
        known.add(info.id)
        yield info


def _check_config_of(tracker: Tracker, info: RunInfo, allow_scripts: bool) -> CheckConfig:
    """How a run's campaign evaluated its builds; the usual check for a build of its own."""
    campaign = next((each for each in _run_and_ancestors(tracker, info) if each.kind == "debug_build"), None)
    data = None if campaign is None else campaigns.read_config(tracker, campaign)
    if campaign is None or data is None:
        return DebugBuildConfig().check
    check = DebugBuildConfig.from_json(data).check
    ask_for(campaign.id, scripts_of(check.data), (), allowed=allow_scripts)
    return check


def _version_tags(build: Build, source_run: str) -> dict[str, str]:
    environment = build.engine.environment
    return {
        schema.Tag.MODEL_SHA256: build.spec.model_sha256,
        schema.Tag.ENGINE_SHA256: build.engine.sha256,
        schema.Tag.EVIDENCE: source_run,
        **builds.environment_tags(environment),
    }


def registered_model(name: str) -> str:
    """A name as the registry takes it: without ``/`` and ``:``, which become ``-2f-`` and ``-3a-``."""
    return name.replace("/", "-2f-").replace(":", "-3a-")[:250]


def alias_of(model_sha256: str, environment: Environment) -> str:
    """The alias of the engine accepted for a model, a kind of device and a back end's release."""
    release = re.sub(r"[^A-Za-z0-9]+", "-", f"{environment.backend}-{environment.backend_version}")
    return f"model-{model_sha256[:12]}_device-{environment.device_sha256[:12]}_{release}"


def resolve(
    model: str | Path | Model,
    *,
    tracker: Tracker,
    backend: str = "onnxruntime",
    environment: Environment | None = None,
    name: str | None = None,
    keys: Sequence[str | Path] = (),
) -> Resolution:
    """The accepted engine of a model on this machine, or why there is none. Builds nothing.

    Args:
        model: The ONNX file.
        tracker: The memory, and its registry.
        backend: The back end that is to run it.
        environment: The device and release to ask for; this machine's unless given.
        name: The registered model; the file's name without its ending unless given.
        keys: Public keys, as PEM files: the engine's run must be signed with one of them, or there is no engine.

    Returns:
        Where the engine is; every file of it was checked against its run's manifest. Or the reason.

    Raises:
        InvalidModelError: If there is no such model.
        BackendUnavailableError: If the back end is not here, and no environment is given.
        ConfigError: If a key cannot be read.
    """
    known = model if isinstance(model, Model) else Model.load(model)
    here = engine_backend(backend).environment() if environment is None else environment
    asked = Resolution(name=registered_model(name or known.name), alias=alias_of(known.info.sha256, here))
    try:
        version = tracker.registered(asked.name, asked.alias)
    except errors.StoreError as exc:
        return replace(asked, why=str(exc))
    if version is None:
        return replace(asked, why=_why_none(tracker, asked, known, here))
    try:
        stored = tracker.load(version.run_id)
        signed_by = require_signed(stored, keys) if keys else None
        found = sha256(stored.read_bytes(version.path))
    except (errors.IncompleteRunError, errors.RunNotFoundError, errors.SignatureError) as exc:
        return replace(asked, why=f"Version {version.version} of {asked.name!r} cannot be used: {exc}")
    promised = {schema.Tag.ENGINE_SHA256: found, schema.Tag.MODEL_SHA256: known.info.sha256}
    for tag, value in promised.items():
        if version.tags.get(tag) != value or stored.info.tags.get(tag) != value:
            what = "engine" if tag == schema.Tag.ENGINE_SHA256 else "model"
            return replace(
                asked,
                why=f"Version {version.version} of {asked.name!r} is of another {what} than run {version.run_id} holds; it was "
                "not registered by promoting. Promote a good run.",
            )
    return replace(
        asked,
        run_id=version.run_id,
        version=version.version,
        path=version.path,
        engine_sha256=found,
        signed_by=signed_by,
    )


def _why_none(tracker: Tracker, asked: Resolution, model: Model, here: Environment) -> str:
    aliases = tracker.aliases(asked.name)
    wanted = f"{here.device}, {here.backend} {here.backend_version}"
    if not aliases:
        return f"No engine of {asked.name!r} was ever accepted. Promote a good run of it on {wanted}."
    own = [alias for alias in aliases if alias.startswith(f"model-{model.info.sha256[:12]}_")]
    if not own:
        return (
            f"Engines of {asked.name!r} were accepted, but of another model than this one, whose digest is "
            f"{model.info.sha256[:12]}. Promote a good run of it on {wanted}."
        )
    versions = [version for alias in own if (version := tracker.registered(asked.name, alias)) is not None]
    places = sorted({_device_text(version.tags) for version in versions})
    return (
        f"Engines of this model were accepted for {'; '.join(places)}, and none for {wanted} "
        f"({here.device_sha256[:8]}). Promote a good run made here."
    )


def _device_text(tags: Mapping[str, str]) -> str:
    device, backend, release, sha = (
        tags.get(tag, "?")
        for tag in (schema.Tag.DEVICE, schema.Tag.BACKEND, schema.Tag.BACKEND_VERSION, schema.Tag.DEVICE_SHA256)
    )
    return f"{device}, {backend} {release} ({sha[:8]})"
