"""ONNX Runtime as an engine back end: builds time candidates, use a timing cache, and can be replayed.

An engine is the optimized model in ONNX Runtime's own format with the session options that it runs under. See
:mod:`trtops.backend.onnxrt.tactics` for what is chosen and :mod:`trtops.backend.onnxrt.search` for how.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import onnx

from trtops import errors
from trtops.backend.base import Build, BuildRequest, Engine, Feed
from trtops.backend.onnx import walk
from trtops.backend.onnx.edit import set_outputs
from trtops.backend.onnx.model import Model, is_large, model_digest
from trtops.backend.onnx.quantize import is_quantized, widen_small_integers
from trtops.backend.onnxrt import tactics
from trtops.backend.onnxrt.adopt import adopt
from trtops.backend.onnxrt.engine import BACKEND, SessionFromEngine, open_plan, pack, provider_settings
from trtops.backend.onnxrt.library import ort
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.measure import Budget, Measurement
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.plan import describe
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.backend.onnxrt.search import Choice, Search, timing_shapes
from trtops.backend.onnxrt.session import DEFAULT_PROVIDERS, MAX_THREADS, environment_on
from trtops.backend.onnxrt.tactics import Candidate
from trtops.backend.onnxrt.timing_cache import TimingCache
from trtops.calibration.cache import read_cache
from trtops.calibration.quantization import Quantization
from trtops.metadata import is_dynamic
from trtops.record import JSONValue
from trtops.spec import BuildConfig, Environment, OnnxRuntimeOptions
from trtops.tables import listed
from trtops.tactics.record import TacticChoice, TacticRecord, carried_over


class OnnxRuntimeBackend:
    """Builds and runs engines with ONNX Runtime; an :class:`~trtops.backend.base.EngineBackend`."""

    name = BACKEND
    engine_suffix = ".ort"

    def environment(self, config: BuildConfig | None = None) -> Environment:
        """Return the build environment with the device of the config's first execution provider."""
        return environment_on(DEFAULT_PROVIDERS if config is None else _checked_options(config).providers)

    def device_state(self, config: BuildConfig | None = None) -> dict[str, str]:
        """Return the number of cores available to this process, by default its threads, or the state of the GPU."""
        if config is not None and _checked_options(config).on_gpu:
            from trtops.backend.trt.library import device as gpu

            return gpu.state()
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return {"cores": str(usable)} if usable else {}

    def build(self, request: BuildRequest) -> Build:
        """Build one engine: rewrite the precision, time the candidates, keep the fastest, or else the defaults.

        With a timing cache that has all candidates, nothing is timed and the choice is the same as before. A tactic
        record pins the settings: only that candidate is built, without timing, and its layers must match the record's,
        if it has any. With ``carry_over``, a record of another release or processor pins the settings that exist here,
        and layers may differ. Inputs and outputs keep the model's dtypes.

        Errors are those of :meth:`trtops.backend.base.EngineBackend.build`.
        """
        start = time.perf_counter()
        model, config, caches, timing_feed = request.model, request.config, request.caches, request.timing_feed
        environment, options = self.environment(config), _checked_options(config)
        key = environment.device_key
        timing_cache = TimingCache(key) if caches.timing is None else TimingCache.from_bytes(caches.timing, key)
        replay, carry_over = caches.replay, caches.carry_over
        replayed = None if replay is None else _replayed_choice(replay, environment, options, carry_over)
        to_vary = _tactics_to_vary(model, config, options)
        shapes = timing_shapes(model.info.inputs, config.profiles, timing_feed or {})
        log = SessionLog()
        rewritten = _rewrite(model, config, caches.calibration, request.calibration_data, log)
        denied = caches.denied.here(environment)
        budget, search, gain = Budget(options.timing_seconds), None, ""
        with Optimizer(rewritten.proto, options, log, caches.attempt_file) as optimizer:

            def why_denied(candidate: Candidate, applicable: tuple[str, ...]) -> str | None:
                if not denied.entries:
                    return None
                # Only the optimized graph shows which kernels a candidate has.
                _, choices = describe(optimizer(candidate).graph, optimizer.model)
                return denied.why(choices, candidate.settings(applicable))

            if replayed is not None:
                choice = replayed
                if refusal := why_denied(choice.candidate, choice.applicable):
                    raise errors.TacticMismatchError(
                        f"The tactic record cannot be replayed: {refusal}. Allow it, or replay another record."
                    )
            else:
                search = Search(
                    optimizer=optimizer,
                    measurement=Measurement(optimizer, options, budget),
                    model_sha256=rewritten.sha256,
                    cache=timing_cache,
                    shapes=shapes,
                    inputs=model.info.inputs,
                    feed=timing_feed or {},
                    log=log,
                    avoid=frozenset(caches.avoid),
                )
                choice = search.run(to_vary, seed=options.tactic_seed, why_denied=why_denied)
            optimized = optimizer(choice.candidate)
            if rewritten.quantization is not None and search is not None and options.tactics is None:
                # Timings of a cache are repeated without timing anything.
                gain = search.gain_over_fp32(model.proto(lean=True), optimized) if caches.timing is None else ""
            plan, (layers, choices) = optimized.plan, describe(optimized.graph, optimizer.model)
            optimizer.note_attempt(choice.candidate)
        built_with: dict[str, JSONValue] = {
            "disabled_optimizers": list(choice.candidate.disabled_optimizers),
            "session_config": {**choice.candidate.session_config(rewritten.proto)},
        }
        # A replay, or timings from a cache, did not load the engine; one that does not load must fail here, not in use.
        if choice.candidate.id not in budget.loaded:
            open_plan(plan, options, provider_settings(options, choice.candidate))
        record = _record(choice, choices, environment)
        if replay is not None and carry_over and not replay.is_of(environment):
            log.add(f"[trtops] {carried_over(replay, record)}")
        elif replay is not None and replay.choices:
            _check_followed(replay, record)
        build = Build(
            spec=request.spec(environment, rewritten.data_sha256),
            engine=pack(plan, choice.candidate, options, environment, {"built_with": built_with}),
            tactics=record,
            layers=layers,
            timing_cache=timing_cache.to_bytes(),
            timing_cache_use=choice.cache_use,
            skipped=choice.skipped,
            tuning=choice.tuning,
            gain=gain,
            denied=choice.denied,
            calibration_cache=rewritten.calibration_cache,
            quantization=rewritten.quantization,
            seconds=time.perf_counter() - start,
            log=log.text(),
        )
        if build.fallback and not options.cpu_fallback:
            raise errors.EngineBuildError(f"{build.fallback}. Allow cpu_fallback, or rewrite these nodes.")
        return build

    def adopt(self, plan: bytes, model: Model, config: BuildConfig) -> Build:
        """Return a build with an engine built elsewhere; see :meth:`trtops.backend.base.EngineBackend.adopt`."""
        _checked_options(config)
        return adopt(plan, model, config)

    def runner(
        self, engine: Engine | Callable[[], Engine], name: str | None = None, *, interleaved: bool = False
    ) -> OnnxrtRunner:
        """Return a runner for an engine, or for the engine returned by a callable at activation.

        Activation raises ``EngineLoadError`` if the bytes are damaged or belong to another release or processor.
        """
        return OnnxrtRunner(SessionFromEngine(engine, interleaved), name)


def model_as_built(model: Model, config: BuildConfig, calibration: bytes | None = None) -> onnx.ModelProto:
    """Return the model as ONNX Runtime receives it in a build: in the requested precision, with its weights inside.

    For INT8 the calibration cache must be given. Raises as :meth:`OnnxRuntimeBackend.build`.
    """
    _checked_options(config)
    return _rewrite(model, config, calibration, None, SessionLog()).proto


def refuse_large(model: Model) -> None:
    """Raise EngineBuildError for a model with more weights than an engine of ONNX Runtime holds."""
    # ONNX Runtime widens 16-bit weights to FP32 on a CPU.
    if is_large(model.structure(), widened=True):
        raise errors.EngineBuildError(
            f"Model {model.name!r} has about 2 GiB of weights or more; ONNX Runtime's engine format holds at most 2 "
            "GiB. Build it with TensorRT."
        )


def _tactics_to_vary(model: Model, config: BuildConfig, options: OnnxRuntimeOptions) -> list[tactics.Tactic]:
    left_out: set[str] = set()
    if config.precision == "int8" and options.tactics is None:
        # Without integer kernels a small model may be faster, but it would not be an INT8 engine.
        left_out.add(tactics.INTEGER_KERNELS)
    if any(spec.shape is None or any(map(is_dynamic, spec.shape)) for spec in model.info.inputs):
        left_out.add(tactics.CUDA_GRAPH)
    return [tactic for tactic in tactics.allowed(options) if tactic.name not in left_out]


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
    if not 0 <= options.intra_op_threads <= MAX_THREADS:
        raise errors.ConfigError(
            f"intra_op_threads is {options.intra_op_threads}; expected 0 (automatic) to {MAX_THREADS}."
        )
    if config.precision == "fp8" or (config.precision == "bf16" and not options.on_gpu):
        raise errors.UnsupportedFeatureError(
            f"ONNX Runtime {ort.__version__} has hardly any {config.precision} kernels, so this back end builds fp32, "
            f"fp16 and int8, and bf16 on a GPU. Choose one of these, or build {config.precision} with TensorRT."
        )
    return options


@dataclass(frozen=True)
class _Rewritten:
    """The model in the requested precision, with a digest identifying its timings.

    For INT8 also the calibration cache written into it, the digest of the calibration data if known, and the layers.
    """

    proto: onnx.ModelProto
    sha256: str
    calibration_cache: bytes | None = None
    data_sha256: str | None = None
    quantization: Quantization | None = None


def _rewrite(
    model: Model,
    config: BuildConfig,
    calibration_cache: bytes | None,
    calibration_data: Iterable[Feed] | None,
    log: SessionLog,
) -> _Rewritten:
    """Rewrite the model to the requested precision, and mark further outputs."""
    refuse_large(model)
    proto = model.proto(lean=True)
    widened = widen_small_integers(proto)
    if widened:
        log.add(f"[trtops] kept in 8 bits, since ONNX Runtime's format has no 4-bit weights: {', '.join(widened)}")
    changed, used_cache, data_sha256, quantization = bool(widened), None, None, None
    if config.precision in ("fp16", "bf16"):
        from trtops.backend.onnx import precision  # imports modules that other precisions do not need

        if config.precision == "fp16":
            proto, changed = precision.convert_to_fp16(proto, keep_io=True, exclude=config.keep), True
        else:
            proto, changed = precision.lower_precision(proto, "bf16", exclude=config.keep).model, True
    elif config.precision == "int8" and is_quantized(proto):
        log.add("[trtops] the model has Q/DQ nodes and is built as it is")
    elif config.precision == "int8":
        from trtops.backend.onnxrt import calibration  # likewise

        used_cache = calibration_cache
        quantized = calibration.Quantizer(proto, log, config)
        if used_cache is not None:
            cache = read_cache(used_cache)
        elif calibration_data is not None:
            samples = config.calibration_samples
            cache, comparison = calibration.best_ranges(model, proto, calibration_data, quantized, samples)
            log.add(f"[trtops] {comparison.sentence()}")
            used_cache = cache.to_bytes()
        else:
            raise errors.CalibrationError(
                "Precision int8 needs calibration data (feeds of real inputs) or a calibration cache; neither is given."
            )
        if cache.model_sha256 not in (None, model.info.sha256):
            log.add(
                f"[trtops] the calibration cache was made with model {cache.model_sha256[:12]}, this is "
                f"{model.info.sha256[:12]}; its ranges are used for the tensors of the same names"
            )
        proto, quantization = quantized(cache)
        log.add(f"[trtops] {quantization.sentence()}")
        changed, data_sha256 = True, cache.data_sha256
    if config.mark:
        set_outputs(proto, list(dict.fromkeys((*walk.by_name(proto.graph.output), *config.mark))))
        changed = True
    return _Rewritten(
        proto, model_digest(proto) if changed else model.info.sha256, used_cache, data_sha256, quantization
    )


def _replayed_choice(
    record: TacticRecord, environment: Environment, options: OnnxRuntimeOptions, carry_over: bool
) -> Choice:
    """Return the choice pinned by a tactic record; of a record carried over, only settings existing here."""
    if record.mechanism != "onnxruntime":
        raise errors.TacticMismatchError(
            f"The tactic record was made by {record.mechanism!r}; ONNX Runtime replays records of 'onnxruntime' only."
        )
    settings = record.settings
    if not carry_over:
        record.require_of(environment)
    elif not record.is_of(environment):
        settings = tuple(setting for setting in settings if setting[0] in tactics.BY_NAME)
    try:
        candidate = Candidate.from_settings(settings)
    except errors.ConfigError as exc:
        raise errors.TacticMismatchError(f"The tactic record cannot be followed: {exc}") from exc
    if not candidate.is_exact and not options.allow_approximation:
        raise errors.ConfigError(
            f"The tactic record switches on an approximation ({candidate.id}), but allow_approximation is false. "
            "Set it, or replay another record."
        )
    return Choice(candidate, tuple(name for name, _ in settings))


def _record(choice: Choice, choices: tuple[TacticChoice, ...], environment: Environment) -> TacticRecord:
    return TacticRecord(
        mechanism="onnxruntime",
        backend_version=environment.backend_version,
        device_sha256=environment.device_sha256,
        settings=choice.candidate.settings(choice.applicable),
        choices=choices,
    )


def _check_followed(recorded: TacticRecord, built: TacticRecord) -> None:
    differing = recorded.differing_layers(built)
    if not differing:
        return
    theirs = {choice.layer: choice.tactic for choice in recorded.choices}
    ours = {choice.layer: choice.tactic for choice in built.choices}
    changes = (f"{n!r}: {theirs.get(n, 'no such layer')} became {ours.get(n, 'no layer')}" for n in differing)
    raise errors.TacticMismatchError(
        f"The tactic record was not followed in {len(differing)} of {len(theirs)} layers: {listed(changes, 5, '; ')}. "
        "Was it recorded from this model, in this precision?",
        layers=differing,
    )
