"""Builds in the tracking store: logging a build and its inputs to its run, and reading them back.

:func:`load_build` is the inverse of :func:`log_spec` and :func:`log_build`. A build can be repeated from its run alone
(:func:`log_materials`): caches are logged unchanged, random data is made again from its seed, and other data is logged
if it is small enough; its digest is always logged.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.base import Build, Caches, Engine, Feed, TimingCacheUse
from trtops.calibration.cache import CalibrationCache
from trtops.calibration.data import FeedDigest
from trtops.calibration.quantization import Quantization
from trtops.json import to_json
from trtops.metadata import TensorSpec, is_dynamic
from trtops.record import Record, digest, sha256, sha256_file, to_jsonable
from trtops.spec import BuildSpec, Environment, Layer, ModelInfo
from trtops.system.processes import temporary_prefix
from trtops.tactics.record import TacticRecord
from trtops.tracking import schema
from trtops.tracking.base import Run, RunInfo, StoredRun, Tracker, incomplete, run_id_of
from trtops.tracking.records import RUN_PREFIX, ArtifactEntry, Manifest, ReusedBuild
from trtops.tracking.schema import Artifact, Metric, Tag

log = logging.getLogger(__name__)

# Maximum bytes of input data in a run.
_LARGEST_DATA = 64 << 20
# Data types that MLflow's signatures can describe.
_NUMPY_TYPES = {"bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))}
_NUMPY_TYPES |= {"float16", "float32", "float64"}
ENGINE_STEM = f"{Artifact.ENGINE}engine"


def build_key(spec: BuildSpec, environment: Environment) -> str:
    """The SHA-256 of interchangeable builds: those with the same spec and build environment."""
    return digest([spec.digest, environment.build_digest()])


def log_spec(run: Run, spec: BuildSpec, environment: Environment) -> None:
    """Log the spec and the environment of a build before it begins."""
    run.set_tags({Tag.MODEL_SHA256: spec.model_sha256, Tag.BACKEND: environment.backend})
    spec_params = schema.flat_params({**spec.stated(), "unknown": spec.unknown})
    spec_params[schema.AS_PARAM[Tag.SPEC_SHA256]] = spec.digest
    calibration = {schema.CALIBRATED_ON: spec.calibration_sha256} if spec.calibration_sha256 else {}
    run.log_params(spec_params | environment_params(environment) | calibration)
    run.log_json(spec, Artifact.SPEC)
    run.log_json(environment, Artifact.ENVIRONMENT)


def log_build(run: Run, build: Build, model: ModelInfo, engine_suffix: str, key: str | None = None) -> None:
    """Log a finished build: engine, tactics, layers, caches and log as artifacts, its numbers as metrics.

    ``model`` names the inputs and outputs for MLflow's clients. Later builds find the engine by the :func:`build_key`.
    It is None in campaigns, whose engines may be bad.
    """
    engine = build.engine
    run.set_tags({Tag.ENGINE_SHA256: engine.sha256} | ({} if key is None else {Tag.BUILD_KEY: key}))
    run.log_params({"skipped": build.skipped} | ({"gain": build.gain} if build.gain else {}))
    if build.quantization is not None:
        run.log_json(build.quantization, Artifact.QUANTIZATION)
        run.log_params({f"excluded_by_{rule}": len(names) for rule, names in build.quantization.excluded})
    run.log_metrics({Metric.BUILD_SECONDS: build.seconds, Metric.ENGINE_BYTES: float(len(build.engine.plan))})
    suffix = ".onnx" if engine.options.get("format") == "ONNX" else engine_suffix
    run.log_bytes(engine.plan, f"{ENGINE_STEM}{suffix}")
    run.log_json(dict(engine.options), Artifact.ENGINE_OPTIONS)
    run.log_json(_mlmodel(engine.environment, model), Artifact.MLMODEL)
    run.log_json(build.tactics, Artifact.TACTICS)
    run.log_json([layer.to_dict() for layer in build.layers], Artifact.LAYERS)
    if build.denied:
        run.log_json(list(build.denied), Artifact.LEFT_OUT)
    if build.timing_cache is not None:
        run.log_bytes(build.timing_cache, Artifact.TIMING_CACHE)
    if build.calibration_cache is not None:
        run.log_bytes(build.calibration_cache, Artifact.CALIBRATION_CACHE)
    run.log_json(build.timing_cache_use, Artifact.TIMING_CACHE_USE)
    run.log_text(build.log, Artifact.BUILD_LOG)


def _mlmodel(environment: Environment, model: ModelInfo) -> dict[str, Any]:
    """The ``MLmodel`` file, by which MLflow's clients load an engine; JSON is YAML too.

    Without a signature if a type of the model is not one of numpy's, or a rank is not known.
    """
    loader = {"loader_module": "trtops.tracking.mlflow.flavor", "python_version": environment.python}
    platform = {"backend": environment.backend, "release": environment.backend_version, "device": environment.device}
    document: dict[str, Any] = {"flavors": {"python_function": loader, "trtops": platform}}
    sides = {"inputs": model.inputs, "outputs": model.outputs}
    if not all(_is_numpy_tensor(tensor) for tensors in sides.values() for tensor in tensors):
        return document
    signature = {}
    for side, tensors in sides.items():
        described = []
        for tensor in tensors:
            shape = [-1 if is_dynamic(dim) else dim for dim in tensor.shape or ()]
            if side == "inputs":
                shape[:1] = [-1] * len(shape[:1])  # MLflow takes rows of a DataFrame for no fixed number
            spec = {"dtype": tensor.dtype and tensor.dtype.value, "shape": shape}
            described.append({"name": tensor.name, "type": "tensor", "tensor-spec": spec})
        signature[side] = json.dumps(described)
    return {**document, "signature": signature}


def _is_numpy_tensor(tensor: TensorSpec) -> bool:
    return tensor.dtype is not None and tensor.shape is not None and tensor.dtype.value in _NUMPY_TYPES


def engine_entry(manifest: Manifest) -> ArtifactEntry | None:
    """The entry of a build's engine; None for a run without one."""
    return next((entry for entry in manifest.artifacts if entry.path.startswith(f"{ENGINE_STEM}.")), None)


def log_reuse(run: Run, build: Build, holder: StoredRun) -> None:
    """Log the reuse of a build from another run, the owner of its files, and log its numbers."""
    run.set_tags({Tag.ENGINE_SHA256: build.engine.sha256, Tag.REUSED_FROM: holder.info.id})
    run.log_json(ReusedBuild(run=holder.info.id, artifacts=holder.build_files()), Artifact.REUSED)
    run.log_metrics({Metric.BUILD_SECONDS: build.seconds, Metric.ENGINE_BYTES: float(len(build.engine.plan))})


def load_build(run: StoredRun, *, engine: bool = True) -> Build:
    """Read a build back from its run; every file is checked against the manifest.

    Without ``engine``, which may be damaged, the plan is empty.
    """
    spec = BuildSpec.from_json(run.read_bytes(Artifact.SPEC))
    environment = Environment.from_json(run.read_bytes(Artifact.ENVIRONMENT))
    layers = _read_json(run, Artifact.LAYERS)
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise errors.FormatError(f"Run {run.info.id}: {Artifact.LAYERS} is not a list of layers.")
    without = Engine(backend=environment.backend, plan=b"", environment=environment)
    return Build(
        spec=spec,
        engine=load_engine(run, environment) if engine else without,
        tactics=TacticRecord.from_json(run.read_bytes(Artifact.TACTICS)),
        layers=tuple(map(Layer.from_dict, layers)),
        timing_cache=run.get(Artifact.TIMING_CACHE),
        timing_cache_use=TimingCacheUse.from_json(run.read_bytes(Artifact.TIMING_CACHE_USE)),
        gain=run.info.params.get("gain", ""),
        calibration_cache=run.get(Artifact.CALIBRATION_CACHE),
        denied=tuple(map(str, json.loads(run.get(Artifact.LEFT_OUT) or b"[]"))),
        quantization=load_quantization(run),
        seconds=run.info.metrics.get(Metric.BUILD_SECONDS, 0.0),
        log=run.read_bytes(Artifact.BUILD_LOG).decode("utf-8", "replace"),
    )


def load_quantization(run: StoredRun) -> Quantization | None:
    """What a run's build quantized; None if it wrote no Q/DQ nodes, or does not say so."""
    stored = run.get(Artifact.QUANTIZATION)
    return None if stored is None else Quantization.from_json(stored)


def load_cache(source: str, tracker: Tracker | None = None) -> CalibrationCache:
    """Read a calibration cache from a file of either format, or from a run (``run:ID``).

    Raises ConfigError if there is no such file, or a run is named without a tracker; FormatError if it is not a
    calibration cache; TrackingError if the run is missing or incomplete, or has none.
    """
    if source.startswith(RUN_PREFIX):
        if tracker is None:
            raise errors.ConfigError(f"{source!r} names a run, but there is no store to read it from.")
        run = tracker.load(run_id_of(source, tracker))
        data = run.get(Artifact.CALIBRATION_JSON)
        return CalibrationCache.from_bytes(run.read_bytes(Artifact.CALIBRATION_CACHE) if data is None else data)
    try:
        return CalibrationCache.from_bytes(Path(source).read_bytes())
    except OSError as exc:
        raise errors.ConfigError(f"Calibration cache {source!r} cannot be read: {exc.strerror}.") from None


def load_engine(run: StoredRun, environment: Environment | None = None) -> Engine:
    """The engine of a run, checked against the manifest."""
    path = engine_path(run)
    if environment is None:
        environment = Environment.from_json(run.read_bytes(Artifact.ENVIRONMENT))
    options = _read_json(run, Artifact.ENGINE_OPTIONS)
    if not isinstance(options, dict):
        raise errors.FormatError(f"Run {run.info.id}: {Artifact.ENGINE_OPTIONS} is not an object.")
    plan = run.read_bytes(path)
    return Engine(backend=environment.backend, plan=plan, options=options, environment=environment)


def engine_path(run: StoredRun) -> str:
    """Path of the engine among the run's artifacts."""
    for path in run.paths(f"{ENGINE_STEM}."):
        return path
    raise incomplete(run.info.id, f"it has no engine ({ENGINE_STEM}.*)")


def find_model(tracker: Tracker, info: RunInfo, given_path: str | Path | None = None) -> Path:
    """The ONNX file of a run: at the given path, at its old path if unchanged, or among the artifacts."""
    from trtops.backend.onnx.model import Model

    if given_path is not None:
        return Path(given_path).absolute()
    named = Path(info.fact(Tag.MODEL_PATH) or "model.onnx").absolute()

    def is_model(file: Path) -> bool:
        with contextlib.suppress(errors.InvalidModelError):
            return file.is_file() and Model.load(file).info.sha256 == info.tags.get(Tag.MODEL_SHA256)
        return False

    if is_model(named):  # on another machine, any file may be at that place
        return named
    if info.status == "finished":
        stored = tracker.load(info.id)
        # Including data files, which the model needs next to it.
        if logged_files := [stored.local_path(path) for path in stored.paths(Artifact.MODEL)]:
            return next((file for file in logged_files if file.suffix == ".onnx"), logged_files[0])
    elif (data := tracker.peek(info.id, f"{Artifact.MODEL}{named.name}")) is not None:  # of a campaign to resume
        file = Path(_model_folder().name, info.id, named.name)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        if is_model(file):
            return file
    raise errors.ConfigError(f"The model of run {info.id} is not at {named}, and the run kept none. Give its path.")


@functools.cache
def _model_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=temporary_prefix("model"))


def find_build(tracker: Tracker, key: str) -> tuple[StoredRun, Build] | None:
    """The newest complete build with this :func:`build_key` and its run, or None.

    Damaged, pruned and forged runs are skipped with a warning. None as well if the store cannot be read.
    """
    # Building again is better than not building.
    try:
        candidates = tracker.find(tags={Tag.BUILD_KEY: key}, status="finished")
    except errors.TrackingError:
        return None
    # Tags can be forged, so the key is computed again from the run's checked files.
    for info in candidates:
        if Tag.REUSED_FROM in info.tags:
            continue
        try:
            stored = tracker.load(info.id).holder
            build = load_build(stored)
        except errors.TrackingUnavailableError:
            continue
        except errors.TrtopsError as exc:
            log.warning("The engine of run %s is not reused: %s", info.id, exc)
            continue
        if build_key(build.spec, build.engine.environment) == key:
            return stored, build
        log.warning("The engine of run %s is not reused: its spec or environment differs from its tag.", info.id)
    return None


def log_crash(run: Run, settings: Sequence[str], model_sha256: str, environment: Environment) -> None:
    """Log settings after a crash of the builder's process; :func:`crashed_settings` finds them."""
    run.log_json(list(settings), Artifact.CRASHED)
    run.set_tags({Tag.CRASHED_IN: crash_key(model_sha256, environment)})


def crash_key(model_sha256: str, environment: Environment) -> str:
    """Digest of the conditions of a crash: the model, the builder's release and the device."""
    return digest([model_sha256, environment.backend_version, environment.device_sha256])


def crashed_settings(tracker: Tracker, model_sha256: str, environment: Environment) -> tuple[str, ...]:
    """Settings with earlier builder crashes for this model and environment; empty if the store cannot be read."""
    tags = {Tag.CRASHED_IN: crash_key(model_sha256, environment)}
    try:
        documents = (tracker.peek(info.id, Artifact.CRASHED) for info in tracker.find(tags=tags))
        names = chain.from_iterable(map(json.loads, filter(None, documents)))
        return tuple(dict.fromkeys(map(str, names)))
    except (errors.TrackingError, ValueError):
        return ()


_ENVIRONMENT_FIELDS = {
    Tag.BACKEND: "backend",
    Tag.BACKEND_VERSION: "backend_version",
    Tag.DEVICE: "device",
    Tag.DEVICE_SHA256: "device_sha256",
    Tag.COMPUTE_CAPABILITY: "compute_capability",
    Tag.DRIVER: "driver",
    Tag.CUDA: "cuda",
    Tag.GIT_COMMIT: "git_commit",
}
# The tags of environment_tags().
ENVIRONMENT_TAGS = (*_ENVIRONMENT_FIELDS, Tag.ENVIRONMENT_SHA256)


def environment_tags(environment: Environment) -> dict[str, str]:
    """The environment of a registered engine as tags, without unknown values."""
    values = {tag: getattr(environment, name) for tag, name in _ENVIRONMENT_FIELDS.items()}
    values[Tag.ENVIRONMENT_SHA256] = environment.build_digest()
    return {tag: value for tag, value in values.items() if value}


def environment_params(environment: Environment) -> dict[str, str]:
    """The environment of a run as params for MLflow's comparison page, without unknown values."""
    tags = environment_tags(environment)
    packages = {f"env.package.{name}": version for name, version in environment.packages if version}
    return packages | {schema.AS_PARAM[tag]: value for tag, value in tags.items() if tag != Tag.BACKEND}


def _read_json(run: StoredRun, path: str) -> Any:
    try:
        return json.loads(run.read_bytes(path))
    except (ValueError, RecursionError) as exc:
        raise errors.FormatError(f"Run {run.info.id}: {path} is not JSON ({exc}).") from None


@dataclass(frozen=True, kw_only=True)
class Material(Record):
    """One input of a build: a cache, ``replay``, ``denied``, ``data`` or ``golden``; its path is empty if not logged.

    The digest is that of the file's bytes, for ``data``, ``replay`` and ``denied`` that of their content.
    """

    name: str
    sha256: str
    path: str = ""

    def __post_init__(self) -> None:
        # A forged path could name a script, which runs where data is read.
        if self.path and (not self.path.startswith(Artifact.MATERIALS_FOLDER) or ".py" in self.path):
            raise errors.FormatError(f"{Artifact.MATERIALS} names {self.path!r}, which is no file of a build's inputs")


@dataclass(frozen=True, kw_only=True)
class Materials(Record):
    """The inputs of a build: the config of its evaluation as JSON; and caches, data and golden outputs."""

    check: Mapping[str, Any]
    inputs: tuple[Material, ...] = field(default=())

    def of(self, name: str) -> Material | None:
        """The input with this name, or None."""
        return next((material for material in self.inputs if material.name == name), None)


def log_materials(
    run: Run, *, caches: Caches, check: Record, feeds: Iterable[Feed], data: str | None, golden: str | None
) -> None:
    """Log the inputs of a build.

    ``feeds`` are the data for the evaluation, read once; ``data`` is their source, None if they are random and need not
    be kept. ``golden`` is a file of golden outputs, if they are not computed.
    """
    materials = [*_log_caches(run, caches), _log_data(run, feeds, keep=data is not None)]
    if golden is not None:
        path = f"{Artifact.MATERIALS_FOLDER}golden{Path(golden).suffix}"
        run.log_file(golden, path)
        materials.append(Material(name="golden", sha256=sha256_file(golden), path=path))
    check_fields = to_jsonable(check)
    assert isinstance(check_fields, dict)
    run.log_json(Materials(check=check_fields, inputs=tuple(materials)), Artifact.MATERIALS)


def _log_caches(run: Run, caches: Caches) -> Iterable[Material]:
    for name, data in (("timing_cache", caches.timing), ("calibration_cache", caches.calibration)):
        if data is not None:
            path = f"{Artifact.MATERIALS_FOLDER}{name.replace('_', '.')}"
            run.log_bytes(data, path)
            yield Material(name=name, sha256=sha256(data), path=path)
    for name, record in (("replay", caches.replay), ("denied", caches.denied if caches.denied.entries else None)):
        if record is not None:
            path = f"{Artifact.MATERIALS_FOLDER}{name}.json"
            run.log_json(record, path)
            yield Material(name=name, sha256=record.digest, path=path)


def _log_data(run: Run, feeds: Iterable[Feed], *, keep: bool) -> Material:
    feeds_to_log: list[dict[str, Any]] = []
    digest, size = FeedDigest(), 0
    for feed in feeds:
        digest.add(feed)
        if not keep or str(getattr(feed, "point", "")):  # made from given data again, for the shapes of profiles
            continue
        arrays = {name: np.asarray(array) for name, array in feed.items()}
        size += sum(array.nbytes for array in arrays.values())
        keep = size <= _LARGEST_DATA
        feeds_to_log = [*feeds_to_log, arrays] if keep else []
    path = f"{Artifact.MATERIALS_FOLDER}data.json" if keep and feeds_to_log else ""
    if path:
        run.log_bytes(to_json(feeds_to_log).encode("utf-8"), path)
    return Material(name="data", sha256=digest.hexdigest(), path=path)


def read_materials(data: bytes | None) -> Materials | None:
    """Read the materials of :func:`log_materials`; None for a run without them."""
    return None if data is None else Materials.from_dict(json.loads(data))
