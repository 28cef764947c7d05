"""Draws histograms of tensors with their chosen ranges, as PNG pages."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from trtops.calibration.cache import CalibrationCache, TensorRange
from trtops.calibration.histogram import BINS, Histogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
_ROWS = 4
_BARS = 128
_WIDTH, _HEIGHT = 4.2, 2.4
_LEFT, _RIGHT, _ABOVE, _BELOW = 0.5, 0.1, 0.3, 0.5
"""Size of each histogram and of its margins in inches: matplotlib's automatic layout takes longer than the drawing."""


def histogram_pages(cache: CalibrationCache, histograms: Mapping[str, Histogram], limit: int) -> Iterator[bytes]:
    """Yield PNG files of twelve histograms each, for at most ``limit`` tensors, the most clipped ones first."""
    from matplotlib.figure import Figure

    drawn = [entry for entry in cache.ranges if entry.name in histograms]
    drawn = sorted(drawn, key=lambda entry: -(entry.clipped or 0.0))[:limit]
    for start in range(0, len(drawn), _COLUMNS * _ROWS):
        page = drawn[start : start + _COLUMNS * _ROWS]
        rows = -(-len(page) // _COLUMNS)
        width, height = _WIDTH * _COLUMNS, _HEIGHT * rows
        figure = Figure(figsize=(width, height))
        for place, entry in enumerate(page):
            row, column = divmod(place, _COLUMNS)
            left, bottom = column * _WIDTH + _LEFT, (rows - 1 - row) * _HEIGHT + _BELOW
            inside = ((_WIDTH - _LEFT - _RIGHT) / width, (_HEIGHT - _ABOVE - _BELOW) / height)
            _draw_histogram(figure.add_axes((left / width, bottom / height, *inside)), entry, histograms[entry.name])
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=80)
        yield file.getvalue()


def _draw_histogram(ax: Axes, entry: TensorRange, histogram: Histogram) -> None:
    """Draw the counts of magnitudes on a logarithmic axis, and a line where clipping begins."""
    counts = histogram.counts.reshape(_BARS, BINS // _BARS).sum(axis=1)
    edges = np.linspace(0, histogram.limit or 1.0, _BARS + 1)
    ax.stairs(np.maximum(counts, 0.5), edges, fill=True, color="#4477aa", baseline=0.5)
    ax.axvline(entry.amax, color="#cc3311", linewidth=1.2)
    ax.set_yscale("log")
    ax.set_xlim(0, max(histogram.amax, entry.amax) * 1.05 or 1.0)
    name = entry.name if len(entry.name) <= 40 else f"...{entry.name[-37:]}"
    # matplotlib reads "$" in a name as mathematics.
    ax.set_title(name, fontsize=8, parse_math=False)
    clipped = f", {entry.clipped:.3%} clipped" if entry.clipped else ""
    ax.set_xlabel(f"|value|; range {entry.amax:.4g}{clipped}", fontsize=7)
    ax.tick_params(labelsize=6)
    ax.minorticks_off()
