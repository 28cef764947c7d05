"""Constants with the field's names."""

from __future__ import annotations

from trtops.json import LEGACY_VALUE as LEGACY_TYPE_MARKER
from trtops.json import MARKER as TYPE_MARKER

__all__ = ["DEFAULT_SEED", "DEFAULT_SHAPE_VALUE", "LEGACY_TYPE_MARKER", "MARK_ALL", "TAB", "TYPE_MARKER"]

DEFAULT_SHAPE_VALUE = 1
"""Size of a dynamic dimension that nothing says more about."""

DEFAULT_SEED = 1
"""Seed of synthetic inputs."""

TAB = " " * 4

MARK_ALL = "mark-all"
"""Stands for all tensors where outputs are listed."""
