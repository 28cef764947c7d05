"""Models without the values of their large weights, for tools that need only types and shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.backend.onnx import external, walk
from trtops.backend.onnx.messages import TensorProto
from trtops.backend.onnx.model import read_proto

if TYPE_CHECKING:
    import onnx

# Weights with more bytes than this are left out.
LARGE = 16 << 10
# Integers may be shapes or indices, and divisions by zero fail.
_WEIGHT_TYPES = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE))
_PLAIN_FIELDS = frozenset(("dims", "data_type", "name", "doc_string", "raw_data", "external_data", "data_location"))


@dataclass(frozen=True)
class ModelWithoutWeights:
    """A model, and the names of the weights that were left out: initializers of its main graph with unique names.

    In the model they have name, type and shape, and are marked as external.
    """

    model: onnx.ModelProto
    left_out: frozenset[str] = frozenset()

    def tensors(self) -> Iterator[onnx.TensorProto]:
        """Every tensor in the model except those left out."""
        initializers = len(self.model.graph.initializer)
        # Tensors come with the initializers first.
        for i, tensor in enumerate(walk.tensors(self.model)):
            if i >= initializers or tensor.name not in self.left_out:
                yield tensor


def load_without_weights(path: str | Path) -> ModelWithoutWeights:
    """Read a model file without the values of large weights, and without large external data, which must exist."""
    folder, model = Path(path).absolute().parent, read_proto(path, need_opset=False)
    initializers = model.graph.initializer
    names = Counter(tensor.name for tensor in initializers)
    left_out: set[str] = set()
    # Tensors come with the initializers first, so an index below their number is an initializer's.
    for i, tensor in enumerate(walk.tensors(model)):
        if i < len(initializers) and tensor.name and names[tensor.name] == 1 and _is_large_weight(tensor):
            if external.is_external(tensor):
                next(external.locate(tensor, folder).blocks(at_most=1))  # the file exists and can be read
            tensor.ClearField("raw_data")
            external.mark_left_out(tensor)
            left_out.add(tensor.name)
        elif external.is_external(tensor):
            external.load(tensor, folder)
    return ModelWithoutWeights(model, frozenset(left_out))


def _is_large_weight(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor is a valid large weight."""
    size = external.expected_bytes(tensor) or 0
    return (
        tensor.data_type in _WEIGHT_TYPES
        and min(tensor.dims, default=0) > 0
        and size > LARGE
        and {field.name for field, _ in tensor.ListFields()} <= _PLAIN_FIELDS
        and (external.is_external(tensor) or len(tensor.raw_data) == size)
    )
