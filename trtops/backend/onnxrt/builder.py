"""ONNX Runtime as an engine back end: builds that time candidates, remember, and can be replayed.

An engine is the optimized model in ONNX Runtime's own format with the session options that it runs under. See
:mod:`trtops.backend.onnxrt.tactics` for what is chosen and :mod:`trtops.backend.onnxrt.search` for how.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx
import onnxruntime as ort

from trtops import errors
from trtops.backend import environment as surroundings
from trtops.backend.base import Build, Caches, Engine, Feed, TimingCacheUse
from trtops.backend.onnx.model import Model, model_digest
from trtops.backend.onnx.quantize import is_quantized
from trtops.backend.onnxrt import calibration, tactics
from trtops.backend.onnxrt.engine import BACKEND, SessionFromEngine, open_plan, pack
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.plan import describe
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.backend.onnxrt.search import Choice, Search, Shapes, timing_shapes
from trtops.backend.onnxrt.tactics import Candidate, Tactic
from trtops.backend.onnxrt.timing_cache import TimingCache
from trtops.calibration.cache import read_cache
from trtops.metadata import TensorMetadata
from trtops.spec import BuildConfig, Environment, OnnxRuntimeOptions
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord

_PACKAGES = ("numpy", "onnx", "onnxruntime")
_NO_CACHES = Caches()


class OnnxRuntimeBackend:
    """Builds and runs engines with ONNX Runtime; an :class:`~trtops.backend.base.EngineBackend`.

    Attributes:
        name: ``onnxruntime``.
        engine_suffix: Ending of engine files, ``.ort``.
    """

    name = BACKEND
    engine_suffix = ".ort"

    def environment(self) -> Environment:
        """Where builds made now are made. The device is the processor, also if other execution providers are used."""
        processor = surroundings.processor()
        return surroundings.environment(
            backend=self.name,
            backend_version=ort.__version__,
            device=processor.name,
            device_sha256=processor.sha256,
            packages=_PACKAGES,
        )

    def device_state(self) -> dict[str, str]:
        """Nothing: a processor is always shared, and its clock changes from one moment to the next."""
        return {}

    def build(
        self,
        model: Model,
        config: BuildConfig,
        *,
        caches: Caches = _NO_CACHES,
        calibration_data: Iterable[Feed] | None = None,
    ) -> Build:
        """Build one engine: rewrite the precision, time the candidates that matter, keep the fastest.

        A timing cache that knows all candidates makes the build time nothing and choose as before. A tactic record
        pins the settings: only that candidate is built, nothing is timed, and its layers must be those of the record;
        a record without layers pins the settings and nothing else. Inputs and outputs keep the model's dtypes in every
        precision.

        Args:
            model: The model.
            config: How to build, with :class:`~trtops.spec.OnnxRuntimeOptions`.
            caches: Caches to use; one made by another processor or release is refused.
            calibration_data: Feeds to calibrate INT8 with, unless a calibration cache is given; at most
                ``config.calibration_samples`` are taken.

        Raises:
            ConfigError: If the config contradicts itself or the model, or is for another back end.
            EngineBuildError: If ONNX Runtime refuses the model; the message names the op and node where it can.
            CalibrationError: If INT8 is asked for without a cache or data, or calibration fails.
            TimingCacheError: If the timing cache is damaged, or of another processor or release.
            TacticMismatchError: If the replay is of another processor or release, or was not followed.
            UnsupportedFeatureError: If the precision is one that ONNX Runtime does not build.
        """
        start = time.perf_counter()
        task = _check(model, config)
        environment = self.environment()
        cache = _timing_cache(caches.timing, environment)
        replayed = None if caches.replay is None else _replayed(caches.replay, environment, task.options)
        log = SessionLog()
        rewritten = _rewrite(model, config, caches, calibration_data, log)
        options = task.options
        with Optimizer(
            rewritten.proto, providers=options.providers, threads=options.intra_op_threads, log=log
        ) as optimizer:
            denied = _Denied(caches.denied.here(environment), optimizer, rewritten.proto)
            choice = replayed or task.search(optimizer, rewritten.sha256, cache, log).run(
                task.tactics, seed=options.tactic_seed, why_not=denied
            )
            if replayed is not None and (why := denied(replayed.candidate, replayed.applicable)) is not None:
                raise errors.TacticMismatchError(
                    f"The tactic record may not be followed: {why}. Pardon it, or replay another."
                )
            optimized = optimizer(choice.candidate)
            content, graph = optimized.plan, optimized.graph
        open_plan(content, providers=options.providers, threads=options.intra_op_threads)
        layers, choices = describe(graph, rewritten.proto)
        record = TacticRecord(
            mechanism="onnxruntime",
            backend_version=environment.backend_version,
            device_sha256=environment.device_sha256,
            settings=choice.candidate.settings(choice.applicable),
            choices=choices,
        )
        if caches.replay is not None:
            _check_followed(caches.replay, record)
        return Build(
            spec=caches.spec(model.info.sha256, config, environment, rewritten.data_sha256),
            engine=pack(
                content,
                choice.candidate,
                providers=options.providers,
                threads=options.intra_op_threads,
                environment=environment,
            ),
            tactics=record,
            layers=layers,
            timing_cache=cache.to_bytes(),
            timing_cache_use=choice.cache_use,
            calibration_cache=rewritten.calibration_cache,
            seconds=time.perf_counter() - start,
            log=log.text(),
        )

    def runner(self, engine: Engine | Callable[[], Engine], name: str | None = None) -> OnnxrtRunner:
        """A runner for an engine, or for what a callable returns when the runner is activated.

        Activating it raises ``EngineLoadError`` if the bytes are damaged or belong to another release or processor.
        """
        return OnnxrtRunner(SessionFromEngine(engine), name)


@dataclass(frozen=True)
class _Task:
    """A config that was checked against its model."""

    options: OnnxRuntimeOptions
    tactics: tuple[Tactic, ...]
    shapes: tuple[Shapes, ...]
    inputs: TensorMetadata

    def search(self, optimizer: Optimizer, model_sha256: str, cache: TimingCache, log: SessionLog) -> Search:
        return Search(
            optimizer=optimizer,
            model_sha256=model_sha256,
            cache=cache,
            providers=self.options.providers,
            threads=self.options.intra_op_threads,
            iterations=self.options.timing_iterations,
            shapes=self.shapes,
            inputs=tuple(self.inputs.values()),
            log=log,
        )


def _check(model: Model, config: BuildConfig) -> _Task:
    options = config.options
    if not isinstance(options, OnnxRuntimeOptions):
        raise errors.ConfigError(
            f"The config's options are {type(options).__name__}, for back end {options.kind!r}; expected "
            "OnnxRuntimeOptions."
        )
    if options.timing_iterations < 1:
        raise errors.ConfigError(f"timing_iterations is {options.timing_iterations}; expected 1 or more.")
    if options.intra_op_threads < 0:
        raise errors.ConfigError(f"intra_op_threads is {options.intra_op_threads}; expected 0 (automatic) or more.")
    if config.precision in ("bf16", "fp8"):
        raise errors.UnsupportedFeatureError(
            f"ONNX Runtime {ort.__version__} has hardly any {config.precision} kernels, so the back end builds fp32, "
            f"fp16 and int8. Take one of these, or build {config.precision} with TensorRT."
        )
    return _Task(
        options,
        tactics.allowed(options.tactics, allow_approximation=options.allow_approximation),
        timing_shapes(model.info.inputs, config.profiles),
        TensorMetadata.of(model.info.inputs),
    )


def _timing_cache(data: bytes | None, environment: Environment) -> TimingCache:
    if data is None:
        return TimingCache(environment.device_key)
    return TimingCache.from_bytes(data, environment.device_key)


@dataclass(frozen=True)
class _Rewritten:
    """The model in the precision asked for."""

    proto: onnx.ModelProto
    sha256: str
    calibration_cache: bytes | None = None
    data_sha256: str | None = None


def _rewrite(
    model: Model, config: BuildConfig, caches: Caches, data: Iterable[Feed] | None, log: SessionLog
) -> _Rewritten:
    proto = model.proto()
    if config.precision == "fp16":
        from trtops.backend.onnx.precision import convert_to_fp16

        proto = convert_to_fp16(proto, keep_io=True)
        return _Rewritten(proto, model_digest(proto))
    if config.precision == "int8":
        return _rewrite_int8(model, proto, config, caches.calibration, data, log)
    return _Rewritten(proto, model.info.sha256)


def _rewrite_int8(
    model: Model,
    proto: onnx.ModelProto,
    config: BuildConfig,
    given: bytes | None,
    data: Iterable[Feed] | None,
    log: SessionLog,
) -> _Rewritten:
    if is_quantized(proto):
        log.add("[trtops] the model has Q/DQ nodes and is built as it is")
        return _Rewritten(proto, model.info.sha256)
    if given is not None:
        cache = read_cache(given)
    elif data is not None:
        cache = calibration.collect(
            proto,
            data,
            inputs=TensorMetadata.of(model.info.inputs),
            max_feeds=config.calibration_samples,
            model_sha256=model.info.sha256,
            counted=False,
        ).cache
    else:
        raise errors.CalibrationError(
            "Precision int8 needs calibration data (feeds of real inputs) or a calibration cache; neither is given."
        )
    if cache.model_sha256 not in (None, model.info.sha256):
        log.add(
            f"[trtops] the calibration cache was made with model {cache.model_sha256[:12]}, this is "
            f"{model.info.sha256[:12]}; its ranges are used for the tensors of the same names"
        )
    quantized, _ = calibration.quantize(proto, cache, log, keep=config.keep, policy=config.calibration_fit)
    return _Rewritten(quantized, model_digest(quantized), given or cache.to_bytes(), cache.data_sha256)


@dataclass(frozen=True)
class _Denied:
    """Why a candidate may not be built, in words, or None."""

    tactics: DenyList
    optimizer: Optimizer
    model: onnx.ModelProto

    def __call__(self, candidate: Candidate, applicable: tuple[str, ...]) -> str | None:
        if not self.tactics.entries:
            return None
        _, choices = describe(self.optimizer(candidate).graph, self.model)
        return self.tactics.why(choices, candidate.settings(applicable))


def _replayed(record: TacticRecord, environment: Environment, options: OnnxRuntimeOptions) -> Choice:
    """The choice that a tactic record pins."""
    if record.mechanism != "onnxruntime":
        raise errors.TacticMismatchError(
            f"The tactic record was made by {record.mechanism!r}; ONNX Runtime replays records of 'onnxruntime' only."
        )
    if (record.backend_version, record.device_sha256) != (environment.backend_version, environment.device_sha256):
        raise errors.TacticMismatchError(
            f"The tactic record is of ONNX Runtime {record.backend_version} on processor {record.device_sha256[:8]}; here "
            f"is {environment.backend_version} on {environment.device_sha256[:8]} ({environment.device}), where the same "
            "settings give other kernels. Record the tactics of a build made here."
        )
    try:
        candidate = Candidate.from_settings(record.settings)
    except errors.ConfigError as exc:
        raise errors.TacticMismatchError(f"The tactic record cannot be followed: {exc}") from exc
    if not candidate.is_exact and not options.allow_approximation:
        raise errors.ConfigError(
            f"The tactic record switches on an approximation ({candidate.id}), but allow_approximation is false. "
            "Set it, or replay another record."
        )
    return Choice(
        candidate=candidate, applicable=tuple(name for name, _ in record.settings), cache_use=TimingCacheUse()
    )


def _check_followed(wanted: TacticRecord, got: TacticRecord) -> None:
    differing = wanted.differing_layers(got) if wanted.choices else ()
    if not differing:
        return
    theirs = {choice.layer: choice.tactic for choice in wanted.choices}
    ours = {choice.layer: choice.tactic for choice in got.choices}
    shown = [f"{n!r}: {theirs.get(n, 'no such layer')} became {ours.get(n, 'no layer')}" for n in differing[:5]]
    more = f", and {len(differing) - 5} more" if len(differing) > 5 else ""
    raise errors.TacticMismatchError(
        f"The tactic record was not followed in {len(differing)} of {len(theirs)} layers: {'; '.join(shown)}{more}. "
        "Was it recorded from this model, in this precision?",
        differing,
    )
