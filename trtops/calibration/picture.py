"""Draws histograms of tensors with their chosen ranges, as PNG pages."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
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
    drawn = [entry for entry in cache.ranges if entry.name in histograms]
    drawn = sorted(drawn, key=lambda entry: -(entry.clipped or 0.0))[:limit]
    per_page = _COLUMNS * _ROWS
    for start in range(0, len(drawn), per_page):
        yield _draw_page(drawn[start : start + per_page], histograms)


def _draw_page(entries: Sequence[TensorRange], histograms: Mapping[str, Histogram]) -> bytes:
    from matplotlib.figure import Figure

    rows = -(-len(entries) // _COLUMNS)
    width, height = _WIDTH * _COLUMNS, _HEIGHT * rows
    figure = Figure(figsize=(width, height))
    for place, entry in enumerate(entries):
        row, column = divmod(place, _COLUMNS)
        left, bottom = column * _WIDTH + _LEFT, (rows - 1 - row) * _HEIGHT + _BELOW
        inside = (_WIDTH - _LEFT - _RIGHT, _HEIGHT - _ABOVE - _BELOW)
        ax = figure.add_axes((left / width, bottom / height, inside[0] / width, inside[1] / height))
        _draw_histogram(ax, entry, histograms[entry.name])
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    return file.getvalue()


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
