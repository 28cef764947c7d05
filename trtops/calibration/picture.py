"""Draws histograms of tensors with their chosen ranges, as PNG pages."""

import io
import math
from collections.abc import Iterator, Mapping

import numpy as np

from trtops.calibration.cache import CalibrationCache
from trtops.calibration.histogram import BINS, Histogram

_COLUMNS, _ROWS = 3, 4
_BARS = 128


def histogram_pages(cache: CalibrationCache, histograms: Mapping[str, Histogram], limit: int) -> Iterator[bytes]:
    """Yield PNG files of twelve histograms each, for at most ``limit`` tensors, the most clipped ones first."""
    from matplotlib.figure import Figure

    drawn = [entry for entry in cache.ranges if entry.name in histograms]
    drawn = sorted(drawn, key=lambda entry: -(entry.clipped or 0.0))[:limit]
    for start in range(0, len(drawn), _COLUMNS * _ROWS):
        figure = Figure(figsize=(4.2 * _COLUMNS, 2.4 * _ROWS))
        # Fixed margins, since matplotlib's automatic layout takes longer than the drawing.
        figure.subplots_adjust(left=0.04, right=0.99, bottom=0.05, top=0.96, hspace=0.5, wspace=0.15)
        for place, entry in enumerate(drawn[start : start + _COLUMNS * _ROWS], start=1):
            histogram, ax = histograms[entry.name], figure.add_subplot(_ROWS, _COLUMNS, place)
            counts = histogram.counts.reshape(_BARS, BINS // _BARS).sum(axis=1)
            edges = np.linspace(0, histogram.limit or 1.0, _BARS + 1)
            # Logarithms on a plain axis: matplotlib's logarithmic axis takes longer than everything else.
            tops = np.log10(np.maximum(counts, 0.5))
            ax.stairs(tops, edges, fill=True, color="#4477aa", baseline=np.log10(0.5))
            ax.axvline(entry.amax, color="#cc3311", linewidth=1.2)
            powers = range(0, math.ceil(max(tops.max(), 1)) + 1, 2)
            ax.set_yticks(powers, [f"1e{power}" for power in powers])
            ax.set_xlim(0, max(histogram.amax, entry.amax) * 1.05 or 1.0)
            name = entry.name if len(entry.name) <= 40 else f"...{entry.name[-37:]}"
            # matplotlib reads "$" in a name as mathematics.
            ax.set_title(name, fontsize=8, parse_math=False)
            clipped = f", {entry.clipped:.3%} clipped" if entry.clipped else ""
            ax.set_xlabel(f"|value|; range {entry.amax:.4g}{clipped}", fontsize=7)
            ax.tick_params(labelsize=6)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=80)
        yield file.getvalue()
