"""Tensor metadata and formatted arrays, under Polygraphy's module name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtops.json import Decoder, Encoder, add_json_methods
from trtops.lazy import known_as
from trtops.metadata import BoundedShape, MetadataTuple, TensorMetadata

__all__ = ["BoundedShape", "FormattedArray", "MetadataTuple", "TensorMetadata"]


@add_json_methods("formatted array")
@dataclass(eq=False)
class FormattedArray:
    """An array in another memory format than its shape, such as a vectorized TensorRT tensor."""

    array: Any  # the bytes, on the host or, as a device view, on the device
    shape: Sequence[int]  # the tensor's own


@Encoder.register(FormattedArray)
def _encode_formatted_array(formatted: FormattedArray) -> dict[str, Any]:
    return {"array": formatted.array, "shape": list(formatted.shape)}


@Decoder.register(FormattedArray)
def _decode_formatted_array(members: dict[str, Any]) -> FormattedArray:
    return FormattedArray(members["array"], members["shape"])


known_as(__name__, "struct")
