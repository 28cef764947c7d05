"""TensorRT 10: weakly typed by default, strongly typed by flag. What came during the line is probed for."""

from typing import Any

from trtops.backend.trt.lines.base import AllocationStrategy, ReleaseLine
from trtops.backend.trt.lines.features import Feature, has


class TensorRT10(ReleaseLine):
    """10.0 to 10.16."""

    def __init__(self, trt: Any) -> None:
        super().__init__(trt)
        # The functions with 64-bit sizes (``_v2``) came with 10.1; 10.0 only has those with 32 bits.
        self.is_first = not has(trt, "ICudaEngine.device_memory_size_v2")

    def device_memory_bytes(self, engine: Any) -> int:
        """Maximum device memory of a context of the engine, in bytes."""
        if self.is_first:
            return int(engine.device_memory_size)
        return super().device_memory_bytes(engine)

    def context_memory_bytes(self, context: Any, strategy: AllocationStrategy) -> int:
        """Bytes of device memory for the next inference of a context made with ``profile`` or ``runtime``."""
        if self.is_first and strategy == "profile":
            engine = context.engine
            return int(engine.get_device_memory_size_for_profile(context.active_optimization_profile))
        return super().context_memory_bytes(context, strategy)

    def set_context_memory(self, context: Any, pointer: int, nbytes: int) -> None:
        """Hand device memory to a context made with ``profile`` or ``runtime``; it must outlive the inference."""
        if self.is_first:
            context.device_memory = pointer
        else:
            super().set_context_memory(context, pointer, nbytes)

    def set_weight_streaming_budget(self, engine: Any, budget_bytes: int) -> None:
        """Limit the device memory for streamable weights; -1 lets TensorRT choose."""
        if not self.is_first:
            super().set_weight_streaming_budget(engine, budget_bytes)
            return
        self.require(Feature.WEIGHT_STREAMING)
        # In 10.0, zero switches streaming off and the least budget has a name of its own.
        engine.weight_streaming_budget = (
            budget_bytes if budget_bytes < 0 else max(budget_bytes, engine.minimum_weight_streaming_budget)
        )
