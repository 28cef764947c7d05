"""What one pass over blocks adds up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trtops.comparator.arrays import Array
from trtops.comparator.metrics.frontier import Frontier


class Totals:
    """What one pass adds up over blocks."""

    def __init__(self, atol: float, rtol: float) -> None:
        self.atol, self.rtol = atol, rtol
        self.elements = 0
        self.max_abs = self.max_rel = self.sum_abs = self.sum_rel = 0.0
        self.dd = self.aa = self.bb = self.ab = 0.0
        self.peak = -math.inf
        self.nan_a = self.nan_b = self.inf_a = self.inf_b = self.nan_d = self.violations = 0
        self.worst: int | None = None
        self.frontier = Frontier()

    def add(self, a: Array, b: Array, d: Array, r: Array) -> None:
        """Add a block of both arrays and both errors."""
        aa, bb, dd = _dot(a, a), _dot(b, b), _dot(d, d)
        top_d, top_r = float(d.max()), float(r.max())
        if (not (top_d <= self.max_abs) and not math.isnan(self.max_abs)) or self.worst is None:
            self.worst = self.elements + int(d.argmax())
            self.max_abs = top_d
        self.max_rel = _nan_max(self.max_rel, top_r)
        if not (aa < math.inf and bb < math.inf and top_d < math.inf):
            self._count_nonfinite(a, b, d)
        if not (top_d <= self.atol or top_r <= self.rtol):
            self.violations += int(np.count_nonzero(~(d <= self.atol) & ~(r <= self.rtol)))
        self.elements += d.size
        self.sum_abs += float(d.sum())
        self.sum_rel += float(r.sum())
        self.aa, self.bb, self.dd, self.ab = self.aa + aa, self.bb + bb, self.dd + dd, self.ab + _dot(a, b)
        self.peak = _nan_max(self.peak, float(a.max()))
        self.frontier.add(d, r, top_d, top_r)

    def _count_nonfinite(self, a: Array, b: Array, d: Array) -> None:
        self.nan_a += int(np.count_nonzero(np.isnan(a)))
        self.nan_b += int(np.count_nonzero(np.isnan(b)))
        self.inf_a += int(np.count_nonzero(np.isinf(a)))
        self.inf_b += int(np.count_nonzero(np.isinf(b)))
        self.nan_d += int(np.count_nonzero(np.isnan(d)))

    def numbers(self, text: bool) -> dict[str, Any]:
        """The fields of :class:`OutputStatistics` that are known after the pass."""
        return {
            "elements": self.elements,
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "mean_abs": self.mean(self.sum_abs),
            "mean_rel": self.mean(self.sum_rel),
            "l2": math.sqrt(self.dd) if self.dd >= 0 else math.nan,
            "cosine": None if text else self.cosine(),
            "psnr": None if text else self.psnr(),
            "snr": None if text else self.snr(),
            "nan_count": self.nan_a,
            "reference_nan_count": self.nan_b,
            "inf_count": self.inf_a,
            "reference_inf_count": self.inf_b,
            "nan_errors": self.nan_d,
            "violations": self.violations,
            "atol": self.atol,
            "rtol": self.rtol,
            "frontier": self.frontier.points(),
            "frontier_exact": self.frontier.exact,
        }

    def mean(self, total: float) -> float:
        """A sum over the number of elements."""
        return total / self.elements if self.elements else 0.0

    def cosine(self) -> float:
        """Cosine similarity."""
        if self.aa == 0 and self.bb == 0:
            return 1.0
        if self.aa == 0 or self.bb == 0:
            return 0.0
        value = self.ab / (math.sqrt(self.aa) * math.sqrt(self.bb))
        return value if math.isnan(value) else max(-1.0, min(1.0, value))

    def psnr(self) -> float:
        """Peak signal-to-noise ratio in dB."""
        noise = self.mean(self.dd)
        if noise == 0:
            return math.inf
        peak = self.peak if not self.peak <= 0 else 1.0
        return 20 * _log10(peak) - 10 * _log10(noise)

    def snr(self) -> float:
        """Signal-to-noise ratio in dB."""
        noise = self.mean(self.dd)
        if noise == 0:
            return math.inf
        signal = self.mean(self.aa)
        return -math.inf if signal == 0 else 10 * _log10(signal / noise)


def _dot(a: Array, b: Array) -> float:
    # Not BLAS, which would start threads for arrays of this size.
    return float(np.einsum("i,i->", a, b))


def _nan_max(x: float, y: float) -> float:
    return y if y > x or math.isnan(y) else x


def _log10(x: float) -> float:
    return math.log10(x) if 0 < x < math.inf else (-math.inf if x == 0 else x)
