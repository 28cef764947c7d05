"""The inputs of a build: the model's digest, the build config, the caches, and the environment.

Two builds with equal spec digests were given the same inputs. If :meth:`Environment.build_digest` is equal as well, one
engine can replace the other. Names, paths, labels and times are not part of either.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from trtops import errors
from trtops.metadata import TensorSpec
from trtops.record import Config, JSONValue, Record, digest, setting

Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "fp8", "int8"]
# What results are rounded to: a GPU may round the inputs of FP32 products to TF32.
Rounding: TypeAlias = Literal[Precision, "tf32"]

# Fields whose order and repetitions do not change the engine.
_SETS = {"keep", "mark", "tactics", "also", "tactic_sources", "qdq_op_types", "qdq_rules"}
_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "rtx": "NvTensorRTRTXExecutionProvider",
}
GPU_PROVIDERS = frozenset(name for name in _PROVIDERS.values() if name != "CPUExecutionProvider")
# Words of device names that say nothing about one device.
_COMMON_WORDS = {"intel", "amd", "nvidia", "geforce", "tesla", "cpu", "gpu", "processor"}
# Number of tactic seeds that belong to one campaign seed.
CAMPAIGN_SEEDS = 1024


IN_MEMORY = "arrays in memory"
"""How data without a file is named in records, with its digest."""


@dataclass(frozen=True, kw_only=True)
class ShapeRange(Config):
    """The shapes of one input in one optimization profile; ``opt`` is optimized for."""

    name: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def __post_init__(self) -> None:
        ranks = {len(self.min), len(self.opt), len(self.max)}
        if len(ranks) != 1 or any(not lo <= mid <= hi for lo, mid, hi in zip(self.min, self.opt, self.max)):
            raise errors.ConfigError(
                f"Input {self.name!r}: min {self.min}, opt {self.opt} and max {self.max} must have one rank, and "
                "min <= opt <= max in every dimension."
            )


@dataclass(frozen=True, kw_only=True)
class OptimizationProfile(Config):
    """The shapes of an engine: one range per input, in any order."""

    shapes: tuple[ShapeRange, ...]

    @classmethod
    def fixed(cls, **shapes: Sequence[int]) -> "OptimizationProfile":
        """A profile with min = opt = max, from ``name=(1, 3, 224, 224)`` arguments.

        >>> OptimizationProfile.fixed(image=(1, 3, 224, 224)).shapes[0].max
        (1, 3, 224, 224)
        """
        ranges = (ShapeRange(name=n, min=tuple(s), opt=tuple(s), max=tuple(s)) for n, s in shapes.items())
        return cls(shapes=tuple(ranges))


@dataclass(frozen=True, kw_only=True)
class OnnxRuntimeOptions(Config):
    """Options of ONNX Runtime engines."""

    kind: Literal["onnxruntime"] = "onnxruntime"
    # Execution providers, in order of preference; ``cpu``, ``cuda``, ``tensorrt`` and ``rtx`` are short names.
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    tf32: bool = False  # on a GPU, FP32 products may round their inputs to TF32, as ONNX Runtime does by default
    cpu_fallback: bool = True  # nodes that the first provider cannot run may run on the CPU
    # Names of the choices that the builder may vary and time; empty builds ONNX Runtime's default engine.
    tactics: tuple[str, ...] | None = None
    allow_approximation: bool = False  # faster but less exact choices, such as Gelu approximation, may be used
    # Maximum number of rounds, in which candidates are timed in turns with the defaults: four decide at the earliest.
    # The slower half of the candidates drops out early.
    timing_iterations: int = setting(8, least=1)
    # For trying settings, in addition to the default engine. By default the time of five session starts, or of the 16
    # inferences that decide on one setting, but at least two seconds and at most ten. Settings that were not tried are
    # named in the build.
    timing_seconds: float | None = None
    intra_op_threads: int = 0  # within one operator; 0 lets ONNX Runtime decide
    # Choose tactics at random with this seed, instead of by time; for campaigns. Seed 0 uses all allowed approximations
    # and else the default; for a model without approximations it toggles every choice. Seed 1 is the default. 1024 and
    # 1025 do the same, and so on.
    tactic_seed: int | None = None

    def __post_init__(self) -> None:
        names = tuple(_PROVIDERS.get(name.lower(), name) for name in self.providers)
        object.__setattr__(self, "providers", names)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU runs the engines."""
        return self.providers[:1] != () and self.providers[0] in GPU_PROVIDERS


@dataclass(frozen=True, kw_only=True)
class TensorRTOptions(Config):
    """Options of TensorRT engines, in addition to precision and profiles; None is TensorRT's default."""

    kind: Literal["tensorrt"] = "tensorrt"
    tf32: bool = False  # FP32 layers may round their inputs to TF32
    also: tuple[Precision, ...] = ()  # further precisions that the builder may choose per layer
    strongly_typed: bool = False  # take every precision from the model itself
    precision_constraints: Literal["none", "prefer", "obey"] = "none"  # how binding per-layer precisions are
    workspace_bytes: int | None = None
    optimization_level: int | None = setting(None, most=5)  # 0 to 5
    avg_timing_iterations: int | None = None  # measurements averaged for one timing of a tactic
    max_num_tactics: int | None = None  # tactics timed where there is a choice
    l2_limit_for_tiling: int | None = None  # bytes of L2 cache that tilings aim at
    build_route: str | None = None  # settings of the compiler, such as "-name=value -other=value"
    tactic_sources: tuple[str, ...] | None = None
    sparse_weights: bool = False  # 2:4 sparse kernels may be used
    refittable: bool = False  # weights can be exchanged later
    version_compatible: bool = False  # later releases may load the plan
    tactic_seed: int | None = None  # offer only half of each layer's tactics, drawn with this seed; for campaigns
    # Record the choices through an algorithm selector, if the release has one, so that they can be replayed. TensorRT
    # 8.6 then builds twice, the second time from the timings of the first.
    record_tactics: bool = True
    # Data types that layers compute in, by layer name or pattern; the last of several matches counts.
    layer_precisions: tuple[tuple[str, str], ...] = ()
    use_dla: bool = False  # layers run on the deep learning accelerator, core 0
    allow_gpu_fallback: bool = False  # layers that it cannot run may run on the GPU


BackendName: TypeAlias = Literal["onnxruntime", "tensorrt"]

SHORT_NAMES: dict[BackendName, str] = {"onnxruntime": "ort", "tensorrt": "trt"}
"""What names of runs call back ends, since tables show about 20 characters of a name."""
BackendOptions: TypeAlias = OnnxRuntimeOptions | TensorRTOptions


@dataclass(frozen=True, kw_only=True)
class BuildConfig(Config):
    """How an engine is built.

    >>> config = BuildConfig(precision="fp16", options=TensorRTOptions(workspace_bytes=1 << 30))
    >>> config.backend
    'tensorrt'

    Attributes:
        precision: The lowest precision that the engine may compute in.
        profiles: Optimization profiles, in the order in which the engine numbers them; by default none for
            ONNX Runtime, and one for TensorRT that spans the shapes of the evaluation's data.
        calibration_samples: Feeds used to calibrate INT8.
        calibration_fit: Whether a calibration cache that lacks tensors of the model is refused, or used as far as
            possible, with the layers that need the missing tensors in higher precision.
        keep: Layers that INT8, FP8, FP16 and BF16 leave in higher precision: names of nodes or of their outputs, shell
            patterns of such names (``block0/*``), or op types.
        qdq_op_types: Types of products to quantize, out of ``Conv``, ``ConvTranspose``, ``Gemm`` and ``MatMul``; by
            default those for which the back end has 8-bit kernels.
        qdq_rules: Rules that place Q/DQ nodes for TensorRT (:data:`trtops.backend.onnx.placement.RULES`); by default
            all, and none if the list is empty.
        mark: Tensors that become outputs as well, so that nothing is fused across them. They are not evaluated.
        options: Options of one back end; their type chooses the back end.
    """

    precision: Precision = "fp32"
    profiles: tuple[OptimizationProfile, ...] = ()
    calibration_samples: int = setting(64, least=1)
    calibration_fit: Literal["refuse", "partial"] = "refuse"
    keep: tuple[str, ...] = ()
    qdq_op_types: tuple[str, ...] = ()
    qdq_rules: tuple[str, ...] | None = None
    mark: tuple[str, ...] = ()
    options: BackendOptions = field(default_factory=OnnxRuntimeOptions)

    @property
    def backend(self) -> BackendName:
        """The back end of the options."""
        return self.options.kind

    @property
    def rounding(self) -> Rounding:
        """The precision; TF32 if FP32 products on a GPU may round their inputs to it."""
        options = self.options
        tf32 = options.tf32 and (isinstance(options, TensorRTOptions) or options.on_gpu)
        return "tf32" if tf32 and self.precision == "fp32" else self.precision

    @property
    def calibrates(self) -> bool:
        """Whether the precision needs ranges of activations."""
        return self.precision in ("int8", "fp8")

    @property
    def strongly_typed(self) -> bool:
        """Whether TensorRT takes every precision from the model: it takes FP8 from nothing else."""
        return isinstance(self.options, TensorRTOptions) and (self.options.strongly_typed or self.precision == "fp8")

    @property
    def times_at_data(self) -> bool:
        """Whether tactics are timed at the shapes of the data: ONNX Runtime does, if it times, without profiles."""
        options = self.options
        if not isinstance(options, OnnxRuntimeOptions) or self.profiles:
            return False
        return options.tactics != () and options.tactic_seed is None

    def on_backend(self, backend: BackendName | None) -> "BuildConfig":
        """The config for a back end, with its default options; unchanged for None, or if it is for this back end."""
        if backend is None or backend == self.backend:
            return self
        return replace(self, options=TensorRTOptions() if backend == "tensorrt" else OnnxRuntimeOptions())

    def deciding(self) -> JSONValue:
        """All options; those of calibration for 8 bits only, and ``keep`` for precisions below FP32."""
        options: dict[str, Any] = self.to_dict()
        for part in (options, options["options"]):
            for name in _SETS & part.keys():
                part[name] = part[name] and sorted(set(part[name]))
        for profile in options["profiles"]:
            profile["shapes"].sort(key=lambda shape: shape["name"])
        if not self.calibrates:
            options.update(calibration_samples=None, calibration_fit=None, qdq_op_types=[], qdq_rules=None)
        if self.precision == "fp32":
            options["keep"] = []
        return options


@dataclass(frozen=True, kw_only=True)
class BuildSpec(Record):
    """The inputs of a build, apart from the environment: SHA-256 digests, and the config."""

    model_sha256: str  # of the content, external data included
    config: BuildConfig
    timing_cache_sha256: str | None = None
    calibration_sha256: str | None = None  # of the calibration cache, or else of the data; None unless 8 bits
    replay_sha256: str | None = None  # of the tactic record to be replayed
    denied_sha256: str | None = None  # of the tactics that may not be chosen
    # Input shapes, by name, that tactics were timed at; empty if the model or the config decides them, or the builder
    # does.
    timed_shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    engine_sha256: str | None = None  # of an engine that another program built
    unknown: tuple[str, ...] = ()  # what is not known of its build, in phrases

    def stated(self) -> dict[str, JSONValue]:
        """The options of the config; of an engine that another program built, only those that the engine shows."""
        options = self.config.to_dict()
        if self.engine_sha256 is None:
            return options
        backend_options = options["options"]
        assert isinstance(backend_options, dict)
        shown = {name: value for name, value in backend_options.items() if name in ("kind", "providers")}
        return {"precision": options["precision"], "profiles": options["profiles"], "options": shown}

    def deciding(self) -> JSONValue:
        """All parts, with the deciding part of the config; calibration for 8 bits only."""
        calibration = self.calibration_sha256 if self.config.calibrates else None
        return {**self.to_dict(), "config": self.config.deciding(), "calibration_sha256": calibration}


@dataclass(frozen=True, kw_only=True)
class Environment(Record):
    """Where something was built or run."""

    backend: str
    backend_version: str
    device: str  # the name of the GPU, or of the processor
    device_sha256: str  # of the compute capability, or of the processor's model and instruction sets
    compute_capability: str | None = None  # of a GPU, such as "9.0"
    driver: str | None = None
    cuda: str | None = None  # release of the driver; for ONNX Runtime, of the library
    cudnn: str | None = None
    os: str = ""  # with the machine architecture
    python: str = ""
    host: str = ""
    git_commit: str | None = None  # of the working folder, with "-dirty" if it was changed
    packages: tuple[tuple[str, str], ...] = ()  # releases of the libraries that rewrite models

    def build_digest(self) -> str:
        """SHA-256 of the deciding values of the environment."""
        releases = [self.backend_version, self.device_sha256, self.driver, self.cuda, self.os]
        if self.cudnn is not None:
            releases.append(self.cudnn)
        return digest([self.backend, *releases, sorted(self.packages)])

    @property
    def has_tf32(self) -> bool:
        """Whether the GPU computes products in TF32 (Ampere and later)."""
        return float(self.compute_capability or 0) >= 8

    @property
    def device_key(self) -> str:
        """A file name of timings, for a device and back end release."""
        plain = "".join(c if c.isalnum() else "-" for c in self.device.lower()).strip("-")
        cuda = f"_cuda-{self.cuda}" if self.cuda else ""  # it changes the keys of TensorRT's timing cache
        cudnn = f"_cudnn-{self.cudnn}" if self.cudnn else ""
        return f"{plain}_{self.device_sha256[:8]}_{self.backend}_{self.backend_version}{cuda}{cudnn}"


def short_device(device: str) -> str:
    """The name of a device without its maker and words that many have, for names of runs.

    >>> short_device("Intel(R) Xeon(R) Processor"), short_device("NVIDIA H100 80GB HBM3")
    ('Xeon', 'H100 80GB HBM3')
    """
    words = re.sub(r"\((R|TM)\)|@.*", "", device, flags=re.IGNORECASE).split()
    return " ".join(word for word in words if word.lower() not in _COMMON_WORDS) or device


@dataclass(frozen=True, kw_only=True)
class Layer(Record):
    """One layer of a built engine, reported by the back end; unknown values are empty."""

    name: str
    op: str
    tactic: str = ""
    precision: str = ""  # data type it computes in
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    onnx_nodes: tuple[str, ...] = ()  # names of the ONNX nodes it was made from


@dataclass(frozen=True, kw_only=True)
class ModelInfo(Record):
    """A short description of an ONNX model, logged to runs."""

    name: str
    sha256: str  # of the content, independent of the path and of how weights are stored
    inputs: tuple[TensorSpec, ...]  # without initializers
    outputs: tuple[TensorSpec, ...]
    opset: int
    nodes: int  # of the main graph
