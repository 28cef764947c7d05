"""Models without the values of their large weights, for tools that need only types and shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.backend.onnx import external, walk
from trtops.backend.onnx.copying import copy_of
from trtops.backend.onnx.messages import TensorProto
from trtops.backend.onnx.parsing import read_proto

if TYPE_CHECKING:
    import onnx

LARGE = 16 << 10
"""Weights with more bytes than this are left out."""

_WEIGHT_TYPES = frozenset(  # wider integers may be shapes or indices
    (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8)
)
_PLAIN_FIELDS = frozenset(("dims", "data_type", "name", "doc_string", "raw_data"))


@dataclass(frozen=True)
class ModelWithoutWeights:
    """A model, and which of its weights were left out.

    Attributes:
        model: The model. Weights that were left out have name, type and shape, and are marked as external.
        left_out: Their names; all are initializers of the main graph with unique names.
    """

    model: onnx.ModelProto
    left_out: frozenset[str] = frozenset()

    def tensors(self) -> Iterator[onnx.TensorProto]:
        """Every tensor in the model except those left out."""
        initializers = len(self.model.graph.initializer)
        for i, tensor in enumerate(walk.tensors(self.model)):  # which yields the initializers first
            if i >= initializers or tensor.name not in self.left_out:
                yield tensor


def load_without_weights(path: str | Path) -> ModelWithoutWeights:
    """Read a model file and its external data, without the values of large weights.

    Raises:
        InvalidModelError: If the file does not exist or is not an ONNX model.
        ExternalDataError: If external data is missing, truncated, unreadable, or outside the model's folder.
    """
    folder = Path(path).absolute().parent
    model = read_proto(path)
    initializers = model.graph.initializer
    names = Counter(tensor.name for tensor in initializers)
    left_out: set[str] = set()
    for i, tensor in enumerate(walk.tensors(model)):  # which yields the initializers first
        size = external.expected_bytes(tensor) or 0
        is_weight = tensor.data_type in _WEIGHT_TYPES and min(tensor.dims, default=0) > 0 and size > LARGE
        if i < len(initializers) and is_weight and tensor.name and names[tensor.name] == 1:
            if external.is_external(tensor):
                next(external.locate(tensor, folder).blocks(at_most=1))  # the file exists and can be read
            elif len(tensor.raw_data) != size or {field.name for field, _ in tensor.ListFields()} - _PLAIN_FIELDS:
                continue  # it is damaged, which the checks of the whole tensor report
            tensor.ClearField("raw_data")
            external.mark_left_out(tensor)
            left_out.add(tensor.name)
        elif external.is_external(tensor):
            external.load(tensor, folder)
    # Protobuf frees the memory of cleared fields only with the whole message.
    return ModelWithoutWeights(copy_of(model), frozenset(left_out))
