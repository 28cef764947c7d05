"""Compares two calibration caches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtops import errors
from trtops.calibration.cache import CalibrationCache
from trtops.record import Record

DEFAULT_RATIO = 1.25


@dataclass(frozen=True, kw_only=True)
class RangeChange(Record):
    """A tensor's range (``amax``) in both caches, and the larger divided by the smaller (infinite if one is zero)."""

    name: str
    before: float
    after: float
    ratio: float


@dataclass(frozen=True, kw_only=True)
class CacheDiff(Record):
    """The difference between two caches.

    Attributes:
        ratio: Ranges further apart than this count as changed.
        added: Tensors that only the second has, in its order.
        lost: Tensors that only the first has, in its order.
        apart: The changed ranges, the furthest apart first.
        common: Number of tensors in both.
    """

    ratio: float
    added: tuple[str, ...]
    lost: tuple[str, ...]
    apart: tuple[RangeChange, ...]
    common: int

    @property
    def same(self) -> bool:
        """Whether both have the same tensors, with ranges within the ratio."""
        return not (self.added or self.lost or self.apart)

    def text(self, limit: int = 20) -> str:
        """Return the difference for a terminal, with at most ``limit`` tensors of each kind."""
        lines = [
            f"{self.common} tensors in both, {len(self.added)} added, {len(self.lost)} lost, "
            f"{len(self.apart)} apart by more than {self.ratio:g}"
        ]
        lines += [f"  + {name}" for name in self.added[:limit]]
        lines += [f"  - {name}" for name in self.lost[:limit]]
        lines += [f"  {c.ratio:8.3g}x  {c.before:.6g} -> {c.after:.6g}  {c.name}" for c in self.apart[:limit]]
        hidden = sum(max(len(kind) - limit, 0) for kind in (self.added, self.lost, self.apart))
        return "\n".join([*lines, f"  ... and {hidden} more"] if hidden else lines)


def diff(before: CalibrationCache, after: CalibrationCache, ratio: float = DEFAULT_RATIO) -> CacheDiff:
    """Compare two caches tensor by tensor; ranges within ``ratio`` (1 or more) of each other are not listed."""
    if not ratio >= 1:
        raise errors.ConfigError(f"ratio is {ratio}; expected 1 or more.")
    first, second = before.by_name(), after.by_name()
    changes = []
    common = [name for name in first if name in second]
    for name in common:
        small, large = sorted((first[name].amax, second[name].amax))
        quotient = 1.0 if small == large else math.inf if small == 0 else large / small
        if quotient > ratio:
            changes.append(RangeChange(name=name, before=first[name].amax, after=second[name].amax, ratio=quotient))
    return CacheDiff(
        ratio=ratio,
        added=tuple(name for name in second if name not in first),
        lost=tuple(name for name in first if name not in second),
        apart=tuple(sorted(changes, key=lambda change: -change.ratio)),
        common=len(common),
    )
