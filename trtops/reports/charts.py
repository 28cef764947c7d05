"""The marks of a chart, for the template."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtops.reports.document import Chart, Tone

_MAX_BARS = 60
_TONES: dict[Tone, str] = {"good": "good", "bad": "bad", "error": "crashed or hung", "plain": "value"}


@dataclass(frozen=True)
class Mark:
    """A point or a bar: its places on both axes from 0 to 1, its label, its value and its tone."""

    x: float
    y: float
    label: str
    value: str
    tone: Tone


@dataclass(frozen=True)
class ChartView:
    """A chart with places for its marks, the ends of its axes, and the number of points that are not drawn."""

    marks: tuple[Mark, ...]
    x_range: tuple[str, str]
    y_range: tuple[str, str]
    logarithmic: bool
    legend: tuple[tuple[Tone, str], ...]
    hidden: int


def chart_view(chart: Chart) -> ChartView:
    """The places of a chart's marks: all finite points, or the largest bars."""
    points = [point for point in chart.points if math.isfinite(point.y) and math.isfinite(point.x)]
    if chart.form == "bars":
        points = sorted(points, key=lambda point: -point.y)[:_MAX_BARS]
    values = [point.y for point in points]
    positive = [value for value in values if value > 0]
    logarithmic = bool(positive) and max(positive) > 100 * min(positive)
    if logarithmic:
        smallest = math.log10(min(positive)) - 0.5  # so that the smallest bar can be seen
        ys, (low, high) = _places([max(math.log10(value), smallest) if value > 0 else smallest for value in values])
        y_range = (f"{10**low:.2g}", f"{10**high:.2g}")
    else:
        ys, (low, high) = _places([0.0, *values])
        ys, y_range = ys[1:], (f"{low:.4g}", f"{high:.4g}")
    xs, (left, right) = _places([point.x for point in points])
    marks = tuple(Mark(x, y, p.label, f"{p.y:.4g}", p.tone) for x, y, p in zip(xs, ys, points))
    legend = tuple((tone, text) for tone, text in _TONES.items() if any(mark.tone == tone for mark in marks))
    x_range = (f"{left:.4g}", f"{right:.4g}")
    return ChartView(marks, x_range, y_range, logarithmic, legend, len(chart.points) - len(points))


def _places(values: Sequence[float]) -> tuple[list[float], tuple[float, float]]:
    """Values as shares of their range, and the range."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / ((high - low) or 1.0) for value in values], (low, high)


def short_name(text: str) -> str:
    """A long name without its middle: the ends of a tensor's name differ most."""
    return text if len(text) <= 38 else f"{text[:18]}…{text[-18:]}"
