"""Tensor metadata and formatted arrays, under Polygraphy's module name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports, known_as

if TYPE_CHECKING:
    from trtops.backend.trt.infer.formats import FormattedArray as FormattedArray
    from trtops.metadata import BoundedShape as BoundedShape
    from trtops.metadata import MetadataTuple as MetadataTuple
    from trtops.metadata import TensorMetadata as TensorMetadata

__getattr__, __dir__ = exports(__name__)
known_as(__name__, "struct")
