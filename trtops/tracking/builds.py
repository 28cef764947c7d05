"""Builds in the memory: what one build leaves in a run, and how it is read back.

:func:`load_build` is the inverse of :func:`log_spec` and :func:`log_build`. All names come from
:mod:`trtops.tracking.schema`.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Sequence
from typing import Any

from trtops import errors
from trtops.backend.base import Build, Engine, TimingCacheUse
from trtops.backend.onnx.model import Model
from trtops.record import digest
from trtops.spec import BuildSpec, Environment, Layer
from trtops.tactics.record import TacticRecord
from trtops.tracking import schema
from trtops.tracking.base import Run, RunInfo, StoredRun, Tracker, incomplete
from trtops.tracking.pyfunc import mlmodel

log = logging.getLogger(__name__)

_OTHER_BYTES = 1 << 20
ENGINE_STEM = f"{schema.Artifact.ENGINE}engine"


def build_key(spec: BuildSpec, environment: Environment) -> str:
    """SHA-256 that two builds share if one can replace the other: same spec, same build environment."""
    return digest([spec.digest, environment.build_digest()])


def expected_bytes(model: Model, *, keep_model: bool = False) -> int:
    """How many bytes a build of a model may leave: an engine is about as large as its model, and logs are small."""
    return (2 if keep_model else 1) * _bytes_of(model) + _OTHER_BYTES


@functools.lru_cache(maxsize=8)
def _bytes_of(model: Model) -> int:
    return sum(file.stat().st_size for file in model.files())


def log_spec(run: Run, spec: BuildSpec, environment: Environment, *, reusable: bool = True) -> None:
    """Log, before a build, what is to be built and where.

    Args:
        run: The run.
        spec: What is asked for.
        environment: Where.
        reusable: Whether later builds of the same spec may reuse this engine; not in campaigns, whose engines may be bad.
    """
    if reusable:
        run.set_tags({schema.Tag.BUILD_KEY: build_key(spec, environment)})
    run.set_tags(
        {
            schema.Tag.MODEL_SHA256: spec.model_sha256,
            schema.Tag.SPEC_SHA256: spec.digest,
            **environment_tags(environment),
        }
    )
    run.log_params(schema.flat_params(spec.config) | environment_params(environment))
    run.log_json(spec, schema.Artifact.SPEC)
    run.log_json(environment, schema.Artifact.ENVIRONMENT)


def log_build(run: Run, build: Build, engine_suffix: str) -> None:
    """Log a finished build: engine, tactics, layers, caches and log as artifacts, its numbers as metrics."""
    engine = build.engine
    run.set_tags({schema.Tag.ENGINE_SHA256: engine.sha256})
    if build.skipped:
        run.set_tags({schema.Tag.SKIPPED: json.dumps(build.skipped)})
    path = f"{ENGINE_STEM}{engine_suffix}"
    run.log_bytes(engine.plan, path)
    run.log_json(dict(engine.options), schema.Artifact.ENGINE_OPTIONS)
    run.log_json(mlmodel(engine, f"engine{engine_suffix}"), schema.Artifact.ENGINE_MLMODEL)
    run.log_json(build.tactics, schema.Artifact.TACTICS)
    run.log_json([layer.to_dict() for layer in build.layers], schema.Artifact.LAYERS)
    if build.timing_cache is not None:
        run.log_bytes(build.timing_cache, schema.Artifact.TIMING_CACHE)
    if build.calibration_cache is not None:
        run.log_bytes(build.calibration_cache, schema.Artifact.CALIBRATION_CACHE)
    run.log_text(build.log, schema.Artifact.BUILD_LOG)
    use = build.timing_cache_use
    run.log_metrics(
        {
            schema.Metric.BUILD_SECONDS: build.seconds,
            schema.Metric.ENGINE_BYTES: float(len(engine.plan)),
            schema.Metric.ENGINE_LAYERS: float(len(build.layers)),
            schema.Metric.TACTICS_COVERAGE: build.tactics.coverage,
            schema.Metric.TIMING_CACHE_HITS: float(use.hits),
            schema.Metric.TIMING_CACHE_MISSES: float(use.misses),
            schema.Metric.TIMING_CACHE_SAVED_SECONDS: use.saved_seconds,
        }
    )


def log_reuse(run: Run, build: Build, holder: str) -> None:
    """Log that an engine was taken from another run, which keeps the artifacts."""
    run.set_tags({schema.Tag.ENGINE_SHA256: build.engine.sha256, schema.Tag.REUSED_FROM: holder})
    run.log_metrics({schema.Metric.ENGINE_BYTES: float(len(build.engine.plan))})


def load_build(run: StoredRun, *, engine: bool = True) -> Build:
    """Read a build back from its run; every file is checked against the manifest.

    Args:
        run: The run.
        engine: Whether the engine's bytes are wanted; without, its plan is empty, and may have been dropped.

    Raises:
        IncompleteRunError: If the run holds no build, or a file does not match the manifest.
    """
    spec = BuildSpec.from_json(run.read_bytes(schema.Artifact.SPEC))
    environment = Environment.from_json(run.read_bytes(schema.Artifact.ENVIRONMENT))
    metrics = run.info.metrics
    return Build(
        spec=spec,
        engine=load_engine(run, environment)
        if engine
        else Engine(backend=environment.backend, plan=b"", environment=environment),
        tactics=TacticRecord.from_json(run.read_bytes(schema.Artifact.TACTICS)),
        layers=_read_layers(run),
        timing_cache=load_timing_cache(run),
        timing_cache_use=TimingCacheUse(
            hits=int(metrics.get(schema.Metric.TIMING_CACHE_HITS, 0)),
            misses=int(metrics.get(schema.Metric.TIMING_CACHE_MISSES, 0)),
            saved_seconds=metrics.get(schema.Metric.TIMING_CACHE_SAVED_SECONDS, 0.0),
        ),
        calibration_cache=_read_if_there(run, schema.Artifact.CALIBRATION_CACHE),
        seconds=metrics.get(schema.Metric.BUILD_SECONDS, 0.0),
        log=run.read_bytes(schema.Artifact.BUILD_LOG).decode("utf-8", "replace"),
    )


def load_timing_cache(run: StoredRun) -> bytes | None:
    """The timing cache that a run's build left; None if it left none.

    Raises:
        IncompleteRunError: If its bytes do not match the manifest.
    """
    return _read_if_there(run, schema.Artifact.TIMING_CACHE)


def load_engine(run: StoredRun, environment: Environment | None = None) -> Engine:
    """The engine of a run, checked against the manifest.

    Raises:
        IncompleteRunError: If the run holds none, or its bytes do not match.
    """
    path = engine_path(run)
    if environment is None:
        environment = Environment.from_json(run.read_bytes(schema.Artifact.ENVIRONMENT))
    return Engine(
        backend=environment.backend,
        plan=run.read_bytes(path),
        options=_read_options(run),
        environment=environment,
    )


def engine_path(run: StoredRun) -> str:
    """Path of the engine among the run's artifacts.

    Raises:
        IncompleteRunError: If there is none.
    """
    for entry in run.manifest.artifacts:
        if entry.path.startswith(ENGINE_STEM + "."):
            return entry.path
    raise incomplete(run.info.id, f"it holds no engine ({ENGINE_STEM}.*)")


def find_build(tracker: Tracker, key: str) -> tuple[str, Build] | None:
    """The newest whole build with this :func:`build_key` and the id of the run that holds it, or None.

    Runs that are damaged, pruned or forged are passed over with a warning. None as well while the store is away: to build
    again is better than not to build.
    """
    try:
        found = tracker.find(tags={schema.Tag.BUILD_KEY: key}, status="finished")
    except errors.TrackingUnavailableError:
        return None
    for info in found:
        if schema.Tag.REUSED_FROM in info.tags:
            continue
        try:
            build = load_build(tracker.load(info.id))
        except errors.TrackingUnavailableError:
            continue
        except errors.TrtopsError as exc:
            log.warning("The engine of run %s is not reused: %s", info.id, exc)
            continue
        if build_key(build.spec, build.engine.environment) == key:
            return info.id, build
        log.warning("The engine of run %s is not reused: it is of another spec or environment than its tag.", info.id)
    return None


def crash_tags(settings: Sequence[str], model_sha256: str, environment: Environment) -> dict[str, str]:
    """Tags of a build in which the builder took its process down; :func:`crashed_settings` finds them."""
    return {
        schema.Tag.CRASHED: json.dumps(settings),
        schema.Tag.CRASHED_IN: crash_key(model_sha256, environment),
    }


def crash_key(model_sha256: str, environment: Environment) -> str:
    """Digest of what a crash depends on: the model, the builder's release and the device."""
    return digest([model_sha256, environment.backend_version, environment.device_sha256])


def crashed_settings(tracker: Tracker, model_sha256: str, environment: Environment) -> tuple[str, ...]:
    """Settings under which the builder took its process down in earlier builds of a model in this environment.

    None while the store is away: to find out again is better than not to build.
    """
    tags = {schema.Tag.CRASHED_IN: crash_key(model_sha256, environment)}
    try:
        found = [info.tags.get(schema.Tag.CRASHED) for info in tracker.find(tags=tags)]
    except errors.TrackingUnavailableError:
        return ()
    return tuple(dict.fromkeys(name for text in found if text for name in json.loads(text)))


def holder_of_engine(tracker: Tracker, info: RunInfo) -> StoredRun:
    """The run that holds the engine of ``info``: itself, or the one it reused.

    Raises:
        RunNotFoundError: If the run it reused is gone.
        IncompleteRunError: If the run is not whole.
    """
    return tracker.load(info.tags.get(schema.Tag.REUSED_FROM, info.id))


ENVIRONMENT_TAGS = (
    schema.Tag.BACKEND,
    schema.Tag.BACKEND_VERSION,
    schema.Tag.DEVICE,
    schema.Tag.DEVICE_SHA256,
    schema.Tag.ENVIRONMENT_SHA256,
    schema.Tag.COMPUTE_CAPABILITY,
    schema.Tag.DRIVER,
    schema.Tag.CUDA,
    schema.Tag.GIT_COMMIT,
)
"""What :func:`environment_tags` says at most."""


def environment_tags(environment: Environment) -> dict[str, str]:
    """Where a run's work was done, as tags to filter by; without what is not known."""
    values = {
        schema.Tag.BACKEND: environment.backend,
        schema.Tag.BACKEND_VERSION: environment.backend_version,
        schema.Tag.DEVICE: environment.device,
        schema.Tag.DEVICE_SHA256: environment.device_sha256,
        schema.Tag.ENVIRONMENT_SHA256: environment.build_digest(),
        schema.Tag.COMPUTE_CAPABILITY: environment.compute_capability,
        schema.Tag.DRIVER: environment.driver,
        schema.Tag.CUDA: environment.cuda,
        schema.Tag.GIT_COMMIT: environment.git_commit,
    }
    return {tag: value for tag, value in values.items() if value}


def environment_params(environment: Environment) -> dict[str, str]:
    """Device and releases, as params: MLflow's page for comparing runs shows params side by side."""
    values: dict[str, str | None] = {
        "backend_version": environment.backend_version,
        "device": environment.device,
        "driver": environment.driver,
        "cuda": environment.cuda,
        **{f"package.{name}": version for name, version in environment.packages},
    }
    return {f"env.{name}": value for name, value in values.items() if value}


def _read_json(run: StoredRun, path: str) -> Any:
    try:
        return json.loads(run.read_bytes(path))
    except (ValueError, RecursionError) as exc:
        raise errors.FormatError(f"Run {run.info.id}: {path} is not JSON ({exc}).") from None


def _read_layers(run: StoredRun) -> tuple[Layer, ...]:
    path = schema.Artifact.LAYERS
    layers = _read_json(run, path)
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise errors.FormatError(f"Run {run.info.id}: {path} is no list of layers.")
    return tuple(map(Layer.from_dict, layers))


def _read_options(run: StoredRun) -> dict[str, Any]:
    path = schema.Artifact.ENGINE_OPTIONS
    options = _read_json(run, path)
    if not isinstance(options, dict):
        raise errors.FormatError(f"Run {run.info.id}: {path} holds no options of an engine.")
    return options


def _read_if_there(run: StoredRun, path: str) -> bytes | None:
    return run.read_bytes(path) if path in run.manifest else None
