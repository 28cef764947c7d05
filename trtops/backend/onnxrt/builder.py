"""ONNX Runtime as an engine back end: builds that time candidates, remember, and can be replayed.

An engine is the optimized model in ONNX Runtime's own format with the session options that it runs under. See
:mod:`trtops.backend.onnxrt.tactics` for what is chosen and :mod:`trtops.backend.onnxrt.search` for how.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import onnx
import onnxruntime as ort

from trtops import errors
from trtops.backend import environment as surroundings
from trtops.backend.base import NO_CACHES, Build, Caches, Engine, Feed, TimingCacheUse
from trtops.backend.onnx.edit import set_outputs
from trtops.backend.onnx.model import Model, is_large, model_digest
from trtops.backend.onnx.quantize import is_quantized, widen_small_integers
from trtops.backend.onnxrt import calibration, tactics
from trtops.backend.onnxrt.budget import Budget
from trtops.backend.onnxrt.engine import BACKEND, SessionFromEngine, open_plan, pack
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.plan import describe
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.backend.onnxrt.search import Choice, Search, Shapes, timing_shapes
from trtops.backend.onnxrt.session import MOST_THREADS
from trtops.backend.onnxrt.tactics import Candidate, Tactic
from trtops.backend.onnxrt.timing_cache import TimingCache
from trtops.calibration.cache import read_cache
from trtops.metadata import TensorMetadata
from trtops.spec import BuildConfig, Environment, OnnxRuntimeOptions
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticChoice, TacticRecord

_PACKAGES = ("numpy", "onnx", "onnxruntime")


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
        """How many cores this process may use, which is how many threads an operator gets unless told otherwise.

        Nothing of the clock: it changes from one moment to the next.
        """
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return {"cores": str(usable)} if usable else {}

    def build(
        self,
        model: Model,
        config: BuildConfig,
        *,
        caches: Caches = NO_CACHES,
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
            EngineLoadError: If ONNX Runtime does not load the engine that it made.
            CalibrationError: If INT8 is asked for without a cache or data, or calibration fails.
            TimingCacheError: If the timing cache is damaged, or of another processor or release.
            TacticMismatchError: If the replay is of another processor or release, or was not followed.
            UnsupportedFeatureError: If the precision is one that ONNX Runtime does not build.
        """
        start = time.perf_counter()
        request = _checked_request(model, config, caches, self.environment())
        providers, threads = request.options.providers, request.options.intra_op_threads
        log = SessionLog()
        with contextlib.ExitStack() as stack:
            rewritten = _rewrite_precision(request, calibration_data, log)
            rewritten = _with_marks(rewritten, config.mark)
            optimizer = stack.enter_context(
                Optimizer(
                    rewritten.proto, providers=providers, threads=threads, log=log, attempt_file=caches.attempt_file
                )
            )
            choice = request.choose(optimizer, rewritten.sha256, log)
            optimized = optimizer(choice.candidate)
            graph, plan = optimized.graph, optimized.plan
            optimizer.note_attempt(choice.candidate)
        # Neither a replay nor timings from a cache loaded it: an engine that does not load is to fail here, not in use.
        open_plan(plan, providers=providers, threads=threads)
        layers, choices = describe(graph, optimizer.model)
        record = request.record(choice, choices)
        return Build(
            spec=caches.spec(model.info.sha256, config, request.environment, rewritten.data_sha256),
            engine=pack(plan, choice.candidate, providers=providers, threads=threads, environment=request.environment),
            tactics=record,
            layers=layers,
            timing_cache=request.timing_cache.to_bytes(),
            timing_cache_use=choice.cache_use,
            skipped=choice.skipped,
            calibration_cache=rewritten.calibration_cache,
            seconds=time.perf_counter() - start,
            log=log.text(),
        )

    def runner(
        self, engine: Engine | Callable[[], Engine], name: str | None = None, *, interleaved: bool = False
    ) -> OnnxrtRunner:
        """A runner for an engine, or for what a callable returns when the runner is activated.

        Activating it raises ``EngineLoadError`` if the bytes are damaged or belong to another release or processor.
        """
        return OnnxrtRunner(SessionFromEngine(engine, interleaved), name)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What a build is asked for, checked against its model and this machine.

    Attributes:
        model: The model.
        config: How to build.
        options: The config's own for ONNX Runtime.
        caches: What earlier builds left.
        environment: Where it is built.
        tactics: What the search may vary.
        shapes: The shapes to time at.
        timing_cache: Timings known before; the search adds its own.
        replayed: The choice that a tactic record pins; None searches.
    """

    model: Model
    config: BuildConfig
    options: OnnxRuntimeOptions
    caches: Caches
    environment: Environment
    tactics: tuple[Tactic, ...]
    shapes: tuple[Shapes, ...]
    timing_cache: TimingCache
    replayed: Choice | None

    def choose(self, optimizer: Optimizer, model_sha256: str, log: SessionLog) -> Choice:
        """The candidate to build: the one replayed, or the best that may be built.

        Raises:
            TacticMismatchError: If the one replayed is denied.
            EngineBuildError: If ONNX Runtime refuses the model, or every candidate is denied.
        """
        why_denied = _WhyDenied(self.caches.denied.here(self.environment), optimizer)
        if self.replayed is not None:
            why = why_denied(self.replayed.candidate, self.replayed.applicable)
            if why is not None:
                raise errors.TacticMismatchError(
                    f"The tactic record may not be followed: {why}. Pardon it, or replay another."
                )
            return self.replayed
        search = Search(
            optimizer=optimizer,
            model_sha256=model_sha256,
            cache=self.timing_cache,
            providers=self.options.providers,
            threads=self.options.intra_op_threads,
            iterations=self.options.timing_iterations,
            budget=Budget(self.options.timing_seconds),
            shapes=self.shapes,
            inputs=self.model.info.inputs,
            log=log,
            avoid=frozenset(self.caches.avoid),
        )
        return search.run(self.tactics, seed=self.options.tactic_seed, why_not=why_denied)

    def record(self, choice: Choice, choices: tuple[TacticChoice, ...]) -> TacticRecord:
        """The record of a build's settings and kernels.

        Raises:
            TacticMismatchError: If it differs from the record that was to be followed.
        """
        record = TacticRecord(
            mechanism="onnxruntime",
            backend_version=self.environment.backend_version,
            device_sha256=self.environment.device_sha256,
            settings=choice.candidate.settings(choice.applicable),
            choices=choices,
        )
        if self.caches.replay is not None:
            _check_followed(self.caches.replay, record)
        return record


def _checked_request(model: Model, config: BuildConfig, caches: Caches, environment: Environment) -> _Request:
    options = _checked_options(config)
    cache = TimingCache(environment.device_key)
    if caches.timing is not None:
        cache = TimingCache.from_bytes(caches.timing, environment.device_key)
    return _Request(
        model=model,
        config=config,
        options=options,
        caches=caches,
        environment=environment,
        tactics=_tactics_to_vary(config, options),
        shapes=timing_shapes(model.info.inputs, config.profiles),
        timing_cache=cache,
        replayed=None if caches.replay is None else _replayed_choice(caches.replay, environment, options),
    )


def _tactics_to_vary(config: BuildConfig, options: OnnxRuntimeOptions) -> tuple[Tactic, ...]:
    """The tactics that the search may vary: for INT8 without the one that makes integer kernels, unless it is named.

    On a small model FP32 between Q/DQ nodes can be the fastest, and would be no INT8 engine.
    """
    found = tactics.allowed(options.tactics, allow_approximation=options.allow_approximation)
    if config.precision != "int8" or options.tactics is not None:
        return found
    return tuple(tactic for tactic in found if tactic.name != tactics.INTEGER_KERNELS)


def _checked_options(config: BuildConfig) -> OnnxRuntimeOptions:
    options = config.options
    if not isinstance(options, OnnxRuntimeOptions):
        raise errors.ConfigError(
            f"The config's options are {type(options).__name__}, for back end {options.kind!r}; expected "
            "OnnxRuntimeOptions."
        )
    if options.timing_iterations < 1:
        raise errors.ConfigError(f"timing_iterations is {options.timing_iterations}; expected 1 or more.")
    if options.timing_seconds is not None and not options.timing_seconds >= 0:
        raise errors.ConfigError(f"timing_seconds is {options.timing_seconds}; expected 0 or more, or none.")
    if not 0 <= options.intra_op_threads <= MOST_THREADS:
        raise errors.ConfigError(
            f"intra_op_threads is {options.intra_op_threads}; expected 0 (automatic) to {MOST_THREADS}."
        )
    if config.precision in ("bf16", "fp8"):
        raise errors.UnsupportedFeatureError(
            f"ONNX Runtime {ort.__version__} has hardly any {config.precision} kernels, so the back end builds fp32, "
            f"fp16 and int8. Take one of these, or build {config.precision} with TensorRT."
        )
    return options


@dataclass(frozen=True)
class _Rewritten:
    """The model in the precision asked for.

    Attributes:
        proto: The model.
        sha256: Its digest, by which timings are remembered.
        calibration_cache: The ranges that were written into it.
        data_sha256: Digest of the data that they come from, where that is known.
    """

    proto: onnx.ModelProto
    sha256: str
    calibration_cache: bytes | None = None
    data_sha256: str | None = None


def _with_marks(rewritten: _Rewritten, mark: Sequence[str]) -> _Rewritten:
    """The same with further outputs, behind its own.

    Raises:
        ConfigError: If there is no such tensor.
    """
    if not mark:
        return rewritten
    own = [value.name for value in rewritten.proto.graph.output]
    set_outputs(rewritten.proto, [*own, *(name for name in mark if name not in own)])
    return replace(rewritten, sha256=model_digest(rewritten.proto))


def _rewrite_precision(request: _Request, data: Iterable[Feed] | None, log: SessionLog) -> _Rewritten:
    """The model in the requested precision."""
    proto = request.model.proto(lean=True)
    if is_large(proto, widened=True):
        raise errors.EngineBuildError(
            f"Model {request.model.name!r} has more than 2 GiB of weights, the limit of ONNX Runtime's engine format. "
            "Build it with TensorRT."
        )
    widened = widen_small_integers(proto)
    if widened:
        log.add(f"[trtops] kept in 8 bits, since ONNX Runtime's format has no 4-bit weights: {', '.join(widened)}")
    precision = request.config.precision
    if precision == "int8" and not is_quantized(proto):
        return _rewrite_int8(request, proto, data, log)
    if precision == "int8":
        log.add("[trtops] the model has Q/DQ nodes and is built as it is")
    if precision == "fp16":
        from trtops.backend.onnx.precision import convert_to_fp16  # other precisions do without its imports

        proto = convert_to_fp16(proto, keep_io=True, exclude=request.config.keep)
        return _Rewritten(proto, model_digest(proto))
    return _Rewritten(proto, model_digest(proto) if widened else request.model.info.sha256)


def _rewrite_int8(
    request: _Request, proto: onnx.ModelProto, data: Iterable[Feed] | None, log: SessionLog
) -> _Rewritten:
    given, info, config = request.caches.calibration, request.model.info, request.config
    if given is not None:
        cache = read_cache(given)
    elif data is not None:
        cache = calibration.collect(
            proto,
            data,
            inputs=TensorMetadata.of(info.inputs),
            max_feeds=config.calibration_samples,
            model_sha256=info.sha256,
            counted=False,
        ).cache
    else:
        raise errors.CalibrationError(
            "Precision int8 needs calibration data (feeds of real inputs) or a calibration cache; neither is given."
        )
    if cache.model_sha256 not in (None, info.sha256):
        log.add(
            f"[trtops] the calibration cache was made with model {cache.model_sha256[:12]}, this is "
            f"{info.sha256[:12]}; its ranges are used for the tensors of the same names"
        )
    quantized, _ = calibration.quantize(proto, cache, log, keep=config.keep, policy=config.calibration_fit)
    return _Rewritten(quantized, model_digest(quantized), given or cache.to_bytes(), cache.data_sha256)


def model_as_built(model: Model, config: BuildConfig, calibration: bytes | None = None) -> onnx.ModelProto:
    """The model as ONNX Runtime is given it when an engine is built: in the precision asked for, with its weights inside.

    Args:
        model: The model.
        config: How the engine is built.
        calibration: The calibration cache, where INT8 is built.

    Raises:
        CalibrationError: If INT8 is built without a cache.
        ConfigError: If the config contradicts itself or the model.
    """
    request = _checked_request(model, config, Caches(calibration=calibration), OnnxRuntimeBackend().environment())
    return _with_marks(_rewrite_precision(request, None, SessionLog()), config.mark).proto


@dataclass(frozen=True)
class _WhyDenied:
    """Says why a candidate may not be built, or None if it may.

    Which kernels a candidate leads to shows only in its optimized graph, so each one asked about is optimized.
    """

    denied: DenyList
    optimizer: Optimizer

    def __call__(self, candidate: Candidate, applicable: tuple[str, ...]) -> str | None:
        if not self.denied.entries:
            return None
        _, choices = describe(self.optimizer(candidate).graph, self.optimizer.model)
        return self.denied.why(choices, candidate.settings(applicable))


def _replayed_choice(record: TacticRecord, environment: Environment, options: OnnxRuntimeOptions) -> Choice:
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
