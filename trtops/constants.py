"""Constants, under Polygraphy's module name."""

from __future__ import annotations

from trtops.comparator.data_loader import DEFAULT_SEED
from trtops.config import AUTOINSTALL_DEPS, INTERNAL_CORRECTNESS_CHECKS
from trtops.json import MARKER as TYPE_MARKER
from trtops.json.objects import LEGACY_VALUE as LEGACY_TYPE_MARKER
from trtops.metadata import DEFAULT_SHAPE_VALUE

__all__ = [
    "AUTOINSTALL_DEPS",
    "DEFAULT_SEED",
    "DEFAULT_SHAPE_VALUE",
    "INTERNAL_CORRECTNESS_CHECKS",
    "LEGACY_TYPE_MARKER",
    "MARK_ALL",
    "TAB",
    "TYPE_MARKER",
]

TAB = " " * 4

MARK_ALL = "mark-all"
"""All tensors, as a list of outputs."""
