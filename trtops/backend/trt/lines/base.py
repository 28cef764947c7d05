"""The base class of the release lines, with the behaviour of most TensorRT releases.

One class per release line overrides what differs. A method calls :meth:`ReleaseLine.require` first if some releases
lack the feature.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from trtops import errors
from trtops.backend.trt.lines.features import Feature, has

AllocationStrategy = Literal["static", "profile", "runtime"]
ALLOCATION_STRATEGIES: tuple[AllocationStrategy, ...] = ("static", "profile", "runtime")

_PRECISION_FEATURES = {"bf16": Feature.BF16_FLAG, "fp8": Feature.FP8_FLAG}


class ReleaseLine:
    """One release of TensorRT: its features, found by probing, and its API."""

    title: ClassVar[str] = "TensorRT"
    # Features that probing finds although they do nothing.
    lacks: ClassVar[frozenset[Feature]] = frozenset()
    # Whether the ONNX parser reads Constant nodes with plain numbers (``value_ints`` and similar) correctly.
    reads_bare_constants: ClassVar[bool] = True
    # The newest operator set that its parser reads; None for any that an exporter writes by default.
    newest_opset: ClassVar[int | None] = None

    def __init__(self, trt: Any) -> None:
        self.trt = trt
        self.version: str = trt.__version__
        self.features = frozenset(f for f in Feature if has(trt, f.probe)) - self.lacks

    @property
    def name(self) -> str:
        """The release in words, such as ``TensorRT 8.6.0``."""
        return f"{self.title} {self.version}"

    def supports(self, feature: Feature) -> bool:
        """Whether this release has a feature."""
        return feature in self.features

    def require(self, feature: Feature) -> None:
        """Raise UnsupportedFeatureError without a feature, naming its releases and the alternative."""
        if feature not in self.features:
            verb = "have" if " and " in feature.releases else "has"
            raise errors.UnsupportedFeatureError(
                f"{self.name} does not have {feature.title}; {feature.releases} {verb} it. {feature.instead}".rstrip()
            )

    # --- networks -----------------------------------------------------------------------------------------------

    def network_flags(self, strongly_typed: bool) -> int:
        """Flags for ``Builder.create_network``."""
        if not strongly_typed:
            return 0
        self.require(Feature.STRONG_TYPING)
        return 1 << int(self.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)

    def is_strongly_typed(self, network: Any) -> bool:
        """Whether a network takes every precision from its tensors."""
        if not self.supports(Feature.STRONG_TYPING):
            return False
        return bool(network.get_flag(self.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))

    # --- builder configs ----------------------------------------------------------------------------------------

    def set_flag(self, config: Any, feature: Feature) -> None:
        """Set the builder flag of a feature."""
        self.require(feature)
        config.set_flag(getattr(self.trt.BuilderFlag, feature.probe.removeprefix("BuilderFlag.")))

    def set_property(self, owner: Any, feature: Feature, value: Any) -> None:
        """Set a feature's property of a builder config or runtime."""
        self.require(feature)
        setattr(owner, feature.probe.partition(".")[2], value)

    def set_precisions(self, config: Any, precisions: Iterable[str]) -> None:
        """Let the builder choose among precisions, by their names (``fp16``, ``bf16``, ``fp8``, ``int8``)."""
        for precision in precisions:
            self.require(Feature.PRECISION_FLAGS)
            self.require(_PRECISION_FEATURES.get(precision, Feature.PRECISION_FLAGS))
            config.set_flag(getattr(self.trt.BuilderFlag, precision.upper()))

    def set_algorithm_selector(self, config: Any, selector: Any) -> None:
        """Let a selector choose among the tactics of each layer."""
        self.require(Feature.ALGORITHM_SELECTOR)
        config.algorithm_selector = selector

    def set_timing_cache(self, config: Any, data: bytes, *, other_device: bool = False) -> bool:
        """Give the builder a timing cache, empty if ``data`` is; False if TensorRT refuses it.

        With ``other_device`` it may come from another device, even from another GPU of the same kind.
        """
        self.require(Feature.TIMING_CACHE)
        timing_cache = config.create_timing_cache(data)
        return timing_cache is not None and bool(config.set_timing_cache(timing_cache, other_device))

    def get_timing_cache(self, config: Any) -> bytes | None:
        """The builder's timing cache, with the entries of the last build; None without one."""
        if not self.supports(Feature.TIMING_CACHE):
            return None
        timing_cache = config.get_timing_cache()
        return None if timing_cache is None else bytes(timing_cache.serialize())

    def timing_entries(self, config: Any) -> dict[str, tuple[int, float]]:
        """Entries of the builder's timing cache: tactic hash and milliseconds by key."""
        self.require(Feature.EDITABLE_TIMING_CACHE)
        timing_cache = config.get_timing_cache()
        values = ((str(key), timing_cache.query(key)) for key in timing_cache.queryKeys())
        return {key: (int(value.tacticHash), float(value.timingMSec)) for key, value in values}

    def update_timing_entries(self, config: Any, entries: Mapping[str, tuple[int, float]]) -> dict[str, str]:
        """Overwrite entries of the builder's timing cache; returns the reason for each unchanged key."""
        self.require(Feature.EDITABLE_TIMING_CACHE)
        timing_cache = config.get_timing_cache()
        cache_keys = {str(key) for key in timing_cache.queryKeys()}
        unchanged = {}
        for text, (tactic_hash, milliseconds) in entries.items():
            key = self.trt.TimingCacheKey.parse(text)
            if not timing_cache.update(key, self.trt.TimingCacheValue(tactic_hash, milliseconds)):
                unchanged[text] = (
                    f"TensorRT refuses tactic {tactic_hash:#x} in its timing cache"
                    if text in cache_keys
                    else "no entry of this key in the timing cache; build with the cache of the recorded build"
                )
        return unchanged

    def set_compute_capabilities(self, config: Any, capabilities: Sequence[Any]) -> None:
        """Build for these compute capabilities."""
        self.require(Feature.COMPUTE_CAPABILITIES)
        config.num_compute_capabilities = len(capabilities)
        for index, capability in enumerate(capabilities):
            config.set_compute_capability(capability, index)

    # --- engines and contexts -----------------------------------------------------------------------------------

    def device_memory_bytes(self, engine: Any) -> int:
        """Maximum device memory of a context of the engine, in bytes."""
        return int(engine.device_memory_size_v2)

    def create_context(self, engine: Any, strategy: AllocationStrategy) -> Any:
        """An execution context; None if TensorRT could not make one."""
        if strategy == "static":
            return engine.create_execution_context()
        self.require(Feature.ALLOCATION_STRATEGY)
        return engine.create_execution_context(self.trt.ExecutionContextAllocationStrategy.USER_MANAGED)

    def context_memory_bytes(self, context: Any, strategy: AllocationStrategy) -> int:
        """Bytes of device memory for the next inference of a context made with ``profile`` or ``runtime``."""
        self.require(Feature.ALLOCATION_STRATEGY)
        if strategy == "runtime":
            return int(context.update_device_memory_size_for_shapes())
        engine = context.engine
        return int(engine.get_device_memory_size_for_profile_v2(context.active_optimization_profile))

    def set_context_memory(self, context: Any, pointer: int, nbytes: int) -> None:
        """Hand device memory to a context made with ``profile`` or ``runtime``; it must outlive the inference."""
        self.require(Feature.ALLOCATION_STRATEGY)
        context.set_device_memory(pointer, nbytes)

    def set_weight_streaming_budget(self, engine: Any, budget_bytes: int) -> None:
        """Limit the device memory for streamable weights; -1 lets TensorRT choose."""
        self.require(Feature.WEIGHT_STREAMING)
        if budget_bytes < 0:
            budget_bytes = engine.get_weight_streaming_automatic_budget()
        engine.weight_streaming_budget_v2 = budget_bytes

    def tensor_layout(self, engine: Any, name: str, profile_index: int) -> tuple[Any, int, int]:
        """The layout of an I/O tensor: its format, the vectorized dimension or -1, and components per element."""
        # With the profile: a tensor may have another format in each.
        return (
            engine.get_tensor_format(name, profile_index),
            int(engine.get_tensor_vectorized_dim(name, profile_index)),
            int(engine.get_tensor_components_per_element(name, profile_index)),
        )

    def profile_values(self, engine: Any, name: str, profile_index: int) -> list[tuple[int, ...]]:
        """The min, opt and max values of a shape tensor input; empty if the profile has no values."""
        # Positional: the bindings have swapped the names of the two arguments.
        return [tuple(values) for values in engine.get_tensor_profile_values(profile_index, name)]

    def profile_range(self, engine: Any, name: str, profile_index: int) -> list[tuple[int, ...]]:
        """The min, opt and max shapes of an input in a profile, or the values of a shape tensor."""
        if not engine.is_shape_inference_io(name):
            return [tuple(dims) for dims in engine.get_tensor_profile_shape(name, profile_index)]
        return self.profile_values(engine, name, profile_index) or [tuple(engine.get_tensor_shape(name))] * 3

    def profiles_listed(self, engine: Any) -> int:
        """For how many profiles the inspector lists an engine's layers, one after the other."""
        return 1

    def supported_subgraphs(self, parser: Any, model: bytes) -> tuple[bool, list[tuple[Any, bool]]]:
        """Return True if an ONNX parser supports a whole model, and groups of nodes, each with True if supported."""
        supported = bool(parser.supports_model_v2(model))
        indices = range(parser.num_subgraphs)
        return supported, [(parser.get_subgraph_nodes(i), parser.is_subgraph_supported(i)) for i in indices]
