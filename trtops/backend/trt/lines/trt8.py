"""TensorRT 8.6: weakly typed, explicit batch by flag."""

from typing import Any

from trtops.backend.trt.lines.base import ReleaseLine
from trtops.backend.trt.lines.features import Feature


class TensorRT8(ReleaseLine):
    """8.6.x. Tensor layouts do not depend on the profile, and device memory always fits the largest profile."""

    # Seen on 8.6.0: the numbers silently arrive changed.
    reads_bare_constants = False
    newest_opset = 17

    def network_flags(self, strongly_typed: bool) -> int:
        """Flags for ``Builder.create_network``: explicit batch has to be asked for."""
        if strongly_typed:
            self.require(Feature.STRONG_TYPING)
        return 1 << int(self.trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)

    def device_memory_bytes(self, engine: Any) -> int:
        """Device memory of a context of the engine, in bytes."""
        return int(engine.device_memory_size)

    def tensor_layout(self, engine: Any, name: str, profile_index: int) -> tuple[Any, int, int]:
        """The layout of an I/O tensor, the same in every profile."""
        return (
            engine.get_tensor_format(name),
            int(engine.get_tensor_vectorized_dim(name)),
            int(engine.get_tensor_components_per_element(name)),
        )

    def profile_values(self, engine: Any, name: str, profile_index: int) -> list[tuple[int, ...]]:
        """The min, opt and max values of a shape tensor input; empty if it has none."""
        # The bindings of 8.6 use the number of dimensions as the number of values: they return only the first value of
        # a vector, and no value of a scalar.
        if not engine.is_shape_inference_io(name):
            return []
        return [tuple(values) for values in engine.get_profile_shape_input(profile_index, name)]

    def profiles_listed(self, engine: Any) -> int:
        """All of them."""
        return max(int(engine.num_optimization_profiles), 1)

    def supported_subgraphs(self, parser: Any, model: bytes) -> tuple[bool, list[tuple[Any, bool]]]:
        """The parser's two answers, from one call."""
        supported, subgraphs = parser.supports_model(model)
        return bool(supported), list(subgraphs)
