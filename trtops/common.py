"""Tensor metadata and formatted arrays, under Polygraphy's module name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports, known_as

if TYPE_CHECKING:
    from trtops.backend.trt.infer.formats import FormattedArray
    from trtops.metadata import BoundedShape, MetadataTuple, TensorMetadata

__getattr__, __dir__ = exports(__name__)
known_as(__name__, "struct")
