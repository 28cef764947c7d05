"""Tensor metadata and formatted arrays, under Polygraphy's module name."""

from trtops.lazy import exports, known_as

__getattr__, __dir__ = exports(__name__)
known_as(__name__, "struct")
