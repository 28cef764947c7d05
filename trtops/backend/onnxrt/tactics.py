"""The choices varied and timed by the builder.

A tactic is one graph optimizer of ONNX Runtime, or one option of its CUDA provider, that is on or off for the whole
engine; ONNX Runtime offers no finer choice. The options decide how cuDNN and the provider choose kernels. They are
recorded and replayed; the kernels that exhaustive search times again in each session are not.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import onnx

from trtops import errors
from trtops.backend.environment import processor
from trtops.backend.onnx.quantize import saturates
from trtops.spec import OnnxRuntimeOptions


@dataclass(frozen=True)
class Tactic:
    """An optimizer to run or not, or an option to set or not."""

    name: str  # ONNX Runtime's name for the optimizer
    default: bool = True  # whether ONNX Runtime runs it by default
    exact: bool = True  # whether results differ from the model's definition by rounding only
    config: tuple[tuple[str, str], ...] = ()  # session config entries that switch it on, if it is off by default
    rule: bool = False  # whether it is a rewrite rule, which ONNX Runtime applies together with others
    # Op types that it applies to, in the model for a rule, in the optimized graph if it is off by default.
    ops: tuple[str, ...] = ()
    # Name of the graph optimization level that remains when it is off, if it stands for several optimizers.
    level: str = ""
    provider: tuple[tuple[str, str], ...] = ()  # options of the CUDA provider that it sets


# Without this optimizer an INT8 model computes in FP32.
INTEGER_KERNELS = "QDQSelectorActionTransformer"

# ONNX Runtime's own default is 4, INT8; 1 is FP32.
_ACCURACY_OF_NBITS = "session.qdq_matmulnbits_accuracy_level"

# All tactics, in the order in which the builder tries them: the optimizers that change which kernels run, without those
# that only clean up (constant folding and sharing, dead nodes) and those for other hardware. For each,
# ``tests/backend/onnxrt/test_tactics.py`` has a model whose optimized graph differs with and without it.
TACTICS: tuple[Tactic, ...] = (
    Tactic("NchwcTransformer"),  # convolutions and pooling on blocked channels (NCHWc)
    Tactic("NhwcTransformer"),  # quantized and half-precision convolutions on channels last
    Tactic("ConvActivationFusion"),
    Tactic("ConvBNFusion", rule=True, ops=("BatchNormalization",)),  # into the convolution's weights
    Tactic("MatMulAddFusion"),  # matrix product and bias as one Gemm
    Tactic("GemmActivationFusion"),
    Tactic("MatMulScaleFusion"),
    Tactic("MatmulTransposeFusion"),
    Tactic("LayerNormFusionL1"),  # layer normalization written in single ops
    Tactic("SkipLayerNormFusion"),  # residual sum and layer normalization
    Tactic("GeluFusionL2"),  # GELU written in single ops (with Erf)
    Tactic("BiasGeluFusion"),
    Tactic("QuickGeluFusion"),  # x * sigmoid(a * x)
    Tactic(INTEGER_KERNELS),  # integer kernels where Q/DQ nodes allow them
    Tactic(  # GELU by the tanh formula, which is off by up to about 5e-4
        "GeluApproximation",
        default=False,
        exact=False,
        config=(("optimization.enable_gelu_approximation", "1"),),
        ops=("Gelu", "BiasGelu"),
    ),
    Tactic(  # activations of products with quantized weights rounded to 8 bits, which is off by up to about 1e-2
        "MatMulNBitsInt8", default=False, exact=False, config=((_ACCURACY_OF_NBITS, "4"),), ops=("MatMulNBits",)
    ),
)

# The kernels of a model as one CUDA graph, for static shapes; Inference keeps the inputs and outputs in place.
CUDA_GRAPH = "CudaGraph"
_CONVOLUTIONS = ("Conv", "FusedConv", "ConvTranspose")
_ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "PackedMultiHeadAttention")


def _option(name: str, ops: tuple[str, ...], **settings: str) -> Tactic:
    return Tactic(name, default=False, ops=ops, provider=tuple(settings.items()))


# Options of the CUDA provider (https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html), off by
# default. By default cuDNN's algorithms are searched exhaustively, with all the workspace that they ask for. The
# numbers of attention kernels are bits of AttentionBackend in ONNX Runtime. Two are left out: fuse_conv_bias gave
# random outputs, and convolutions failed with cudnn_conv_use_max_workspace=0 (1.31.1, cuDNN 9.19, H100).
CUDA_TACTICS: tuple[Tactic, ...] = (
    _option(CUDA_GRAPH, (), enable_cuda_graph="1"),
    _option("CudnnHeuristicSearch", _CONVOLUTIONS, cudnn_conv_algo_search="HEURISTIC"),
    _option("CudnnDefaultSearch", _CONVOLUTIONS, cudnn_conv_algo_search="DEFAULT"),
    _option("PreferNhwc", _CONVOLUTIONS, prefer_nhwc="1"),
    _option("TunableOps", ("Gemm", "MatMul", "FusedMatMul"), tunable_op_enable="1", tunable_op_tuning_enable="1"),
    _option("FlashAttention", _ATTENTION, sdpa_kernel="1"),
    _option("EfficientAttention", _ATTENTION, sdpa_kernel="2"),
    _option("CudnnFlashAttention", _ATTENTION, sdpa_kernel="8"),
    _option("MathAttention", _ATTENTION, sdpa_kernel="16"),
)

# Switched off where ONNX Runtime fails under every other setting; never varied for speed.
FALLBACKS: tuple[Tactic, ...] = (
    Tactic("ExtendedOptimizations", level="ORT_ENABLE_BASIC"),  # all optimizers beyond the basic ones
    Tactic("AllOptimizations", level="ORT_DISABLE_ALL"),
)

BY_NAME = {tactic.name: tactic for tactic in (*TACTICS, *CUDA_TACTICS, *FALLBACKS)}


def find(name: str) -> Tactic:
    """Return the tactic of a name; ConfigError if it is unknown."""
    errors.check_known(name, BY_NAME, "ONNX Runtime has no tactic")
    return BY_NAME[name]


def allowed(options: OnnxRuntimeOptions) -> tuple[Tactic, ...]:
    """Return the tactics free to vary in a build, in the order of :data:`TACTICS`; without names, all.

    Options of the CUDA provider are among them if it comes first. ConfigError if a name is unknown, or not exact
    without permission.
    """
    available = (*CUDA_TACTICS, *TACTICS) if options.providers[:1] == ("CUDAExecutionProvider",) else TACTICS
    if options.tactics is None:
        return tuple(tactic for tactic in available if tactic.exact or options.allow_approximation)
    chosen = set(map(find, options.tactics))
    for tactic in chosen:
        if not tactic.exact and not options.allow_approximation:
            raise errors.ConfigError(
                f"tactics names {tactic.name!r}, which is not exact, but allow_approximation is false. Set it, or "
                "leave the tactic out."
            )
    return tuple(filter(chosen.__contains__, available))


@dataclass(frozen=True)
class Candidate:
    """One way to build: ONNX Runtime's defaults, with some tactics toggled (in the order of :data:`TACTICS`)."""

    toggled: tuple[str, ...] = ()

    @classmethod
    def of(cls, tactic: Tactic) -> "Candidate":
        """Return the candidate with one tactic toggled."""
        return cls((tactic.name,))

    @classmethod
    def toggling(cls, names: Iterable[str]) -> "Candidate":
        """Return the candidate with these tactics toggled, in any order."""
        chosen = set(map(find, names))
        return cls(tuple(name for name, tactic in BY_NAME.items() if tactic in chosen))

    @classmethod
    def from_settings(cls, settings: Iterable[tuple[str, str]]) -> "Candidate":
        """Return the candidate with these tactics ``on`` or ``off``, and the others at their default."""
        toggled = []
        for name, value in settings:
            if value not in ("on", "off"):
                raise errors.ConfigError(f"Tactic {name!r} is set to {value!r}; expected 'on' or 'off'.")
            if find(name).default != (value == "on"):
                toggled.append(name)
        return cls.toggling(toggled)

    @property
    def tactics(self) -> list[Tactic]:
        """The toggled tactics."""
        return list(map(BY_NAME.__getitem__, self.toggled))

    @property
    def id(self) -> str:
        """A permanent name: ``default``, or the toggled tactics prefixed with ``+`` (on) or ``-`` (off)."""
        return "".join(f"{'-' if tactic.default else '+'}{tactic.name}" for tactic in self.tactics) or "default"

    @property
    def is_exact(self) -> bool:
        """Whether it switches no approximation on."""
        return all(tactic.exact or tactic.default for tactic in self.tactics)

    def settings(self, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Return ``on`` or ``off`` for each named or toggled tactic, sorted by name."""
        return tuple(
            (name, "on" if BY_NAME[name].default != (name in self.toggled) else "off")
            for name in sorted({*names, *self.toggled})
        )

    @property
    def provider_settings(self) -> dict[str, str]:
        """Options of the CUDA provider."""
        return dict(chain.from_iterable(tactic.provider for tactic in self.tactics))

    def without_provider_settings(self) -> "Candidate":
        """Return the candidate with the provider's options at their defaults."""
        return Candidate(tuple(tactic.name for tactic in self.tactics if not tactic.provider))

    @property
    def disabled_optimizers(self) -> list[str]:
        """Optimizers for the session's ``disabled_optimizers``."""
        return [tactic.name for tactic in self.tactics if tactic.default and not tactic.level]

    @property
    def optimization_level(self) -> str:
        """ONNX Runtime's name of the graph optimization level."""
        levels = [tactic.level for tactic in self.tactics if tactic.level]
        return levels[-1] if levels else "ORT_ENABLE_ALL"

    def session_config(self, model: onnx.ModelProto) -> dict[str, str]:
        """Session config entries: the tactics' own, and those for exact products with a model's quantized weights."""
        config = {_ACCURACY_OF_NBITS: "1", **dict(chain.from_iterable(tactic.config for tactic in self.tactics))}
        # Unsigned weights are exact, and take up to twice the time.
        return config | ({"session.x64quantprecision": "1"} if processor().saturates and saturates(model) else {})
