"""Data types of tensors, under Polygraphy's module name."""

from __future__ import annotations

from trtops.metadata import DataType

__all__ = ["DataType"]
