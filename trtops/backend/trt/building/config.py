"""The builder config, with all of Polygraphy's options."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import IO, TYPE_CHECKING, Any, Literal

from trtops import errors
from trtops.backend.loader import BaseLoader
from trtops.backend.trt import library
from trtops.backend.trt.building import precision
from trtops.backend.trt.building.calibrator import prepare_calibrator
from trtops.backend.trt.building.profile import Profile, ShapeTuple
from trtops.backend.trt.choices import timing_cache
from trtops.backend.trt.describe.layers import inputs_of, layers_of
from trtops.backend.trt.lines import Feature
from trtops.func import value_of

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CommonConfig(BaseLoader[Any]):
    """Options of :class:`CreateConfig` and :class:`CreateConfigRTX`. None keeps TensorRT's default.

    Values of TensorRT's enums may be given by their names, such as ``profiling_verbosity="detailed"``.
    """

    # Optimization profiles, in the order of their numbers in the engine; inputs that they lack are filled in.
    # Without any there is one with the network's own shapes, 1 where they are dynamic.
    profiles: Sequence[Profile] | None = None
    # How binding per-layer precisions are: ``none``, ``prefer`` or ``obey``.
    precision_constraints: Literal["none", "prefer", "obey"] | None = None
    # A timing cache: path, file or bytes. A file that does not exist counts as empty; one of another device or
    # release is refused.
    load_timing_cache: str | os.PathLike[str] | IO[bytes] | bytes | None = None
    # Chooses tactics, such as :func:`TacticRecorder` or :func:`TacticReplayer`, or a callable that makes one. Without
    # ``load_timing_cache`` it switches the timing cache off.
    algorithm_selector: Any = None
    sparse_weights: bool = False  # whether kernels for 2:4 sparse weights may be used
    # Libraries that tactics may come from.
    tactic_sources: Sequence[Any] | None = field(default=None, metadata={"names": "trt.TacticSource"})
    restricted: bool = False  # build for the safety-certified scope
    # How much of the engine its inspector shows; everything by default.
    profiling_verbosity: Any = field(default=None, metadata={"names": "trt.ProfilingVerbosity"})
    # Bytes by pool.
    memory_pool_limits: Mapping[Any, int] | None = field(default=None, metadata={"names": "trt.MemoryPoolType"})
    refittable: bool = False  # whether weights can be exchanged later
    strip_plan: bool = False  # leave refittable weights out of the plan
    # Features to switch on; others are switched off if this is given.
    preview_features: Sequence[Any] | None = field(default=None, metadata={"names": "trt.PreviewFeature"})
    # Scope of the engine.
    engine_capability: Any = field(default=None, metadata={"names": "trt.EngineCapability"})
    direct_io: bool = False  # forbid reformatting at inputs and outputs
    builder_optimization_level: int | None = None  # 0 to 5
    avg_timing_iterations: int | None = None  # measurements averaged for one timing of a tactic
    max_num_tactics: int | None = None  # tactics timed where there is a choice; -1 lets TensorRT choose
    # Devices that the engine should run on.
    hardware_compatibility_level: Any = field(default=None, metadata={"names": "trt.HardwareCompatibilityLevel"})
    max_aux_streams: int | None = None  # additional streams that the engine may use
    version_compatible: bool = False  # whether later releases may load the engine
    exclude_lean_runtime: bool = False  # leave the lean runtime out of a version compatible engine
    # Flags to set; others are cleared if this is given.
    quantization_flags: Sequence[Any] | None = field(default=None, metadata={"names": "trt.QuantizationFlag"})
    error_on_timing_cache_miss: bool = False  # fail instead of timing a tactic
    disable_compilation_cache: bool = False  # store no compiled code in the timing cache
    progress_monitor: Any = None  # a ``trt.IProgressMonitor``
    weight_streaming: bool = False  # let weights stay in host memory until needed; for strongly typed networks
    # Platform to build for.
    runtime_platform: Any = field(default=None, metadata={"names": "trt.RuntimePlatform"})
    # Effort to find tilings.
    tiling_optimization_level: Any = field(default=None, metadata={"names": "trt.TilingOptimizationLevel"})
    l2_limit_for_tiling: int | None = None  # bytes of L2 cache that tilings aim at
    build_route: str | None = None  # settings of the compiler, such as "-name=value -other=value"
    edit_timing_cache: bool = False  # keep one entry per layer in the timing cache, for recording and replaying tactics
    other_device: bool = False  # accept a timing cache of another GPU; only for replays, which check every entry

    def __post_init__(self) -> None:
        if self.exclude_lean_runtime and not self.version_compatible:
            raise errors.ConfigError(
                "exclude_lean_runtime needs version_compatible: only such engines carry a runtime."
            )
        if self.precision_constraints is not None:
            errors.check_known(self.precision_constraints, ("none", "prefer", "obey"), "precision_constraints is")

    def call_impl(self, builder: Any, network: Any) -> Any:
        """Create the config; without a network, profiles and calibration are left out.

        Raises UnsupportedFeatureError if this release lacks an option; ConfigError if a profile does not fit the
        network; TimingCacheError if the timing cache is damaged, or of another device or release.
        """
        return self.resolved()._create(builder, network)

    def resolved(self) -> Self:
        """Return the options with TensorRT's own values for names, and with the products of callables."""
        resolved = copy.copy(self)  # not by `replace`, which would call the `__init__` of a subclass
        for member in fields(self):
            value, enum = getattr(self, member.name), member.metadata.get("names", "").removeprefix("trt.")
            if enum and isinstance(value, Mapping):
                value = {library.member(enum, key): item for key, item in value.items()}
            elif enum:
                value = library.member(enum, value)
            elif member.name in ("algorithm_selector", "calibrator"):
                value = value_of(value)
            vars(resolved)[member.name] = value
        return resolved

    def _create(self, builder: Any, network: Any) -> Any:
        config = builder.create_builder_config()
        self._set_values(config)
        self._set_optional(config)
        if network is not None:
            for ranges in self._filled_profiles(network):
                _split_misused_names(network, ranges)
                if config.add_optimization_profile(ranges.to_trt(builder, network)) < 0:
                    raise errors.ConfigError(f"TensorRT refuses the profile {ranges!r}; its log says why.")
        self._set_timing_cache(config)
        self._configure(builder, network, config)
        return config

    def _configure(self, builder: Any, network: Any, config: Any) -> None:
        """Set the options of the subclass."""

    def _filled_profiles(self, network: Any) -> list[Profile]:
        return [Profile(profile).fill_defaults(network) for profile in self.profiles or [Profile()]]

    def _set_values(self, config: Any) -> None:
        """Set the options of all releases."""
        trt = library.load()
        flags = trt.BuilderFlag
        for enabled, flag in (
            (self.sparse_weights, flags.SPARSE_WEIGHTS),
            (self.restricted, flags.SAFETY_SCOPE),
            (self.refittable, flags.REFIT),
            (self.direct_io, flags.DIRECT_IO),
            (self.version_compatible, flags.VERSION_COMPATIBLE),
            (self.exclude_lean_runtime, flags.EXCLUDE_LEAN_RUNTIME),
        ):
            if enabled:
                config.set_flag(flag)
        # Detailed by default: otherwise the inspector only gives the names of layers, not their tactics.
        config.profiling_verbosity = (
            trt.ProfilingVerbosity.DETAILED if self.profiling_verbosity is None else self.profiling_verbosity
        )
        for name in (
            "engine_capability", "builder_optimization_level", "avg_timing_iterations", "hardware_compatibility_level",
            "max_aux_streams",
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None:
                setattr(config, name, value)
        for pool, nbytes in (self.memory_pool_limits or {}).items():
            config.set_memory_pool_limit(pool, nbytes)
        if self.tactic_sources is not None:
            config.set_tactic_sources(sum(1 << int(source) for source in set(self.tactic_sources)))
        if self.preview_features is not None:
            for feature in trt.PreviewFeature.__members__.values():
                config.set_preview_feature(feature, feature in self.preview_features)

    def _set_optional(self, config: Any) -> None:
        """Set the options of some releases; the release line raises an error on others."""
        line, trt = library.line(), library.load()
        flags = trt.BuilderFlag
        if self.precision_constraints in ("prefer", "obey"):
            line.require(Feature.LAYER_PRECISION)
            obey, prefer = flags.OBEY_PRECISION_CONSTRAINTS, flags.PREFER_PRECISION_CONSTRAINTS
            config.set_flag(obey if self.precision_constraints == "obey" else prefer)
        for enabled, feature in (
            (self.strip_plan, Feature.STRIP_PLAN),
            (self.error_on_timing_cache_miss, Feature.TIMING_CACHE_MISS_ERROR),
            (self.disable_compilation_cache, Feature.COMPILATION_CACHE_SWITCH),
            (self.weight_streaming, Feature.WEIGHT_STREAMING),
        ):
            if enabled:
                line.set_flag(config, feature)
        for value, feature in (
            (self.progress_monitor, Feature.PROGRESS_MONITOR),
            (self.runtime_platform, Feature.RUNTIME_PLATFORM),
            (self.tiling_optimization_level, Feature.TILING),
            (self.max_num_tactics, Feature.MAX_NUM_TACTICS),
            (self.l2_limit_for_tiling, Feature.L2_LIMIT),
            (self.build_route, Feature.BUILD_ROUTE),
        ):
            if value is not None:
                line.set_property(config, feature, value)
        if self.quantization_flags is not None:
            line.require(Feature.QUANTIZATION_FLAGS)
            for flag in trt.QuantizationFlag.__members__.values():
                if flag in self.quantization_flags:
                    config.set_quantization_flag(flag)
                else:
                    config.clear_quantization_flag(flag)
        if self.algorithm_selector is not None:
            line.set_algorithm_selector(config, self.algorithm_selector)
        if self.edit_timing_cache:
            line.require(Feature.EDITABLE_TIMING_CACHE)
            config.set_flag(flags.EDITABLE_TIMING_CACHE)

    def _set_timing_cache(self, config: Any) -> None:
        line = library.line()
        # With a timing cache TensorRT only offers the fastest tactics of layers in it to a selector.
        if self.load_timing_cache is None and self.algorithm_selector is not None:
            config.set_flag(library.load().BuilderFlag.DISABLE_TIMING_CACHE)
        elif self.load_timing_cache is not None:
            line.require(Feature.TIMING_CACHE)
            cache = timing_cache.read(self.load_timing_cache)
            timing_cache.apply(config, cache, other_device=self.other_device)
        elif line.supports(Feature.TIMING_CACHE):
            # An empty one, which fills up during the build and can be saved afterwards.
            line.set_timing_cache(config, b"")


@dataclass(frozen=True, kw_only=True)
class CreateConfig(CommonConfig):
    """Creates a TensorRT builder config; more attributes are listed at ``CommonConfig``."""

    # Whether FP32 layers may round their inputs to TF32. Off by default; TensorRT's own default is on.
    tf32: bool = False
    # Whether layers may compute in FP16. On releases without the flag it is written into the ONNX model.
    fp16: bool = False
    int8: bool = False  # whether layers may compute in INT8, with Q/DQ nodes or, up to 10.16, a calibrator
    fp8: bool = False  # whether layers may compute in FP8
    bf16: bool = False  # whether layers may compute in BF16
    # An INT8 calibrator, such as :func:`Calibrator`, or a callable that makes one. Calibrates at shapes of its first
    # batch if the last profile has them, otherwise at that profile's ``opt`` shapes.
    calibrator: Any = field(default=None, repr=False)
    use_dla: bool = False  # run on DLA core 0
    allow_gpu_fallback: bool = False  # run layers on the GPU that DLA cannot run

    @property
    def precisions(self) -> tuple[str, ...]:
        """The requested precisions below FP32."""
        return tuple(name for name in ("fp16", "bf16", "fp8", "int8") if getattr(self, name))

    def _configure(self, builder: Any, network: Any, config: Any) -> None:
        line, trt = library.line(), library.load()
        flags = trt.BuilderFlag
        if self.tf32:
            config.set_flag(flags.TF32)
        else:
            config.clear_flag(flags.TF32)
        # Strongly typed networks take precisions from their tensors, not from flags.
        if not line.supports(Feature.PRECISION_FLAGS) or (network is not None and line.is_strongly_typed(network)):
            if network is not None:
                precision.check_network(network, self.precisions)
        else:
            line.set_precisions(config, self.precisions)
        if self.calibrator is not None:
            self._set_calibrator(builder, network, config)
        if self.use_dla:
            if builder.num_DLA_cores == 0 and not self.allow_gpu_fallback:
                raise errors.UnsupportedFeatureError(
                    "use_dla=True, but this device has no DLA core. Leave use_dla out, or set allow_gpu_fallback."
                )
            config.default_device_type = trt.DeviceType.DLA
            config.DLA_core = 0
            if self.allow_gpu_fallback:
                config.set_flag(flags.GPU_FALLBACK)

    def _set_calibrator(self, builder: Any, network: Any, config: Any) -> None:
        if not self.int8:
            log.warning("A calibrator was given without int8=True; it will not be used.")
            return
        if network is None:
            return
        kinds = library.load().LayerType
        # A network with Q/DQ nodes has its ranges in them, and TensorRT calibrates none.
        if not any(layer.type in (kinds.QUANTIZE, kinds.DEQUANTIZE) for layer in layers_of(network)):
            ranges = self._filled_profiles(network)[-1]
            batch_shapes = prepare_calibrator(self.calibrator, network, ranges)
            shapes = {name: batch_shapes.get(name, shape_range.opt) for name, shape_range in ranges.items()}
            fixed = Profile({name: ShapeTuple(shape, shape, shape) for name, shape in shapes.items()})
            library.line().require(Feature.CALIBRATOR)
            config.int8_calibrator = self.calibrator
            config.set_calibration_profile(fixed.to_trt(builder, network))


def create_config(builder: Any, network: Any, **options: Any) -> Any:
    """Create a TensorRT builder config; the options are the attributes of :class:`CreateConfig`."""
    return CreateConfig(**options)(builder, network)


@dataclass(frozen=True, kw_only=True)
class CreateConfigRTX(CommonConfig):
    """Creates a TensorRT-RTX builder config; more attributes are listed at ``CommonConfig``."""

    # Build for the GPU of this machine; False builds for ``compute_capabilities`` without a GPU.
    use_gpu: bool | None = None
    # Target compute capabilities (``trt.ComputeCapability`` or names such as ``SM89``).
    compute_capabilities: Sequence[Any] | None = None

    def _configure(self, builder: Any, network: Any, config: Any) -> None:
        capabilities = self.compute_capabilities
        if capabilities is None and self.use_gpu:
            capabilities = ["CURRENT"]
        if capabilities is not None:
            library.line().set_compute_capabilities(config, capabilities)


def create_config_rtx(builder: Any, network: Any, **options: Any) -> Any:
    """Create a TensorRT-RTX builder config; the options are the attributes of :class:`CreateConfigRTX`."""
    return CreateConfigRTX(**options)(builder, network)


@dataclass(frozen=True)
class PostprocessConfig(BaseLoader[Any]):
    """Calls a function on a builder config."""

    config: Any  # a builder config, or a callable that creates one from a builder and a network
    func: Callable[[Any, Any, Any], None]  # called as ``func(builder, network, config)``; changes the config in place

    def __post_init__(self) -> None:
        if not callable(self.func):
            raise errors.ConfigError(f"PostprocessConfig got {self.func!r} as func; expected a function.")

    def call_impl(self, builder: Any, network: Any) -> Any:
        config = self.config(builder, network) if callable(self.config) else self.config
        if network is not None:
            self.func(builder, network, config)
        return config


def postprocess_config(config: Any, func: Callable[[Any, Any, Any], None], builder: Any, network: Any) -> Any:
    """Create a :class:`PostprocessConfig` and call it."""
    return PostprocessConfig(config, func)(builder, network)


def _split_misused_names(network: Any, ranges: Profile) -> None:
    """Rename dimensions of one name with different sizes in a profile: TensorRT builds no engine otherwise.

    Paddle names every dynamic dimension ``?``, also height and width. The first one keeps its name, which TensorRT may
    use for dimensions further inside.
    """
    first: dict[str, tuple[int, int]] = {}
    for tensor in inputs_of(network):
        for axis in () if tensor.is_shape_tensor else range(len(tensor.shape)):
            name, shapes = tensor.get_dimension_name(axis), ranges[tensor.name]
            sizes = shapes.min[axis], shapes.max[axis]
            if name and first.setdefault(name, sizes) != sizes:
                log.warning("Dimensions named %r have different sizes in the profile; they are taken as others.", name)
                tensor.set_dimension_name(axis, f"{tensor.name} {axis}")
