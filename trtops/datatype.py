"""Data types of tensors, under the field's module name."""

from __future__ import annotations

from trtops.metadata import DataType

__all__ = ["DataType"]
