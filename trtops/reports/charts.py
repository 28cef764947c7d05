"""Where the parts of a chart lie: numbers in, places of an SVG picture out, which a template draws with its text as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtops.reports.document import Chart, Point, Tone

_WIDTH, _HEIGHT = 720.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 16.0, 14.0, 46.0
_BAR, _BARS = 26.0, 60
_TONES: dict[Tone, str] = {"good": "good", "bad": "bad", "error": "crashed or hung", "plain": "value"}


@dataclass(frozen=True)
class Mark:
    """A point or a bar: its place, the end of a bar, its text and its tone."""

    x: float
    y: float
    to: float
    text: str
    value: str
    tone: Tone


@dataclass(frozen=True)
class Tick:
    """A line of the grid: its place along the axis and what stands beside it."""

    at: float
    text: str


@dataclass(frozen=True)
class Drawn:
    """A chart in places, in units of the picture."""

    chart: Chart
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    marks: tuple[Mark, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    legend: tuple[tuple[Tone, str], ...]
    left_out: int


def drawn(chart: Chart) -> Drawn:
    """A chart in places. Values that are not finite are left out, and counted."""
    points = [point for point in chart.points if math.isfinite(point.y) and math.isfinite(point.x)]
    return _bars(chart, points) if chart.form == "bars" else _plane(chart, points)


def _plane(chart: Chart, points: Sequence[Point]) -> Drawn:
    up, ticks_up = _scale([p.y for p in points], _HEIGHT - _BOTTOM, _TOP)
    across, ticks_across = _scale([p.x for p in points], _LEFT, _WIDTH - _RIGHT, linear=True)
    marks = tuple(Mark(across(p.x), up(p.y), 0.0, p.label, f"{p.y:.4g}", p.tone) for p in points)
    return _placed(chart, marks, _HEIGHT, _LEFT, ticks_across, ticks_up, len(chart.points) - len(points))


def _bars(chart: Chart, points: Sequence[Point]) -> Drawn:
    shown = sorted(points, key=lambda point: -point.y)[:_BARS]
    left = min(300.0, 24.0 + 7.2 * max((_columns(shortened(p.label)) for p in shown), default=0))
    along, ticks = _scale([p.y for p in shown], left, _WIDTH - _RIGHT - 60)
    height = _TOP + _BAR * max(len(shown), 1) + _BOTTOM
    marks = tuple(
        Mark(left, _TOP + _BAR * i, max(along(p.y), left + 1), p.label, f"{p.y:.4g}", p.tone)
        for i, p in enumerate(shown)
    )
    return _placed(chart, marks, height, left, ticks, (), len(chart.points) - len(shown))


def _placed(
    chart: Chart,
    marks: tuple[Mark, ...],
    height: float,
    left: float,
    across: tuple[Tick, ...],
    up: tuple[Tick, ...],
    out: int,
) -> Drawn:
    tones = tuple((tone, text) for tone, text in _TONES.items() if any(mark.tone == tone for mark in marks))
    return Drawn(
        chart=chart, width=_WIDTH, height=height, left=left, right=_WIDTH - _RIGHT, top=_TOP, bottom=height - _BOTTOM,
        marks=marks, across=across, up=up, legend=tones, left_out=out,
    )  # fmt: skip


def _scale(
    values: Sequence[float], first: float, last: float, *, linear: bool = False
) -> tuple[Callable[[float], float], tuple[Tick, ...]]:
    """A function from values to places, and ticks: logarithmic where values span more than a factor of 100."""
    positive = [value for value in values if value > 0]
    if not linear and positive and max(positive) > 100 * min(positive):
        lowest, highest = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        every = max(1, math.ceil((highest - lowest) / 6))

        def place(value: float) -> float:
            share = (math.log10(value) - lowest) / max(highest - lowest, 1) if value > 0 else 0.0
            return first + share * (last - first)

        return place, tuple(Tick(place(10.0**n), f"1e{n}") for n in range(lowest, highest + 1, every))
    low, high = min([0.0, *values]), max([0.0, *values])
    high = high if high > low else low + 1.0
    step = _step((high - low) / 5)
    top = math.ceil(high / step - 1e-9) * step

    def linearly(value: float) -> float:
        return first + (value - low) / (top - low) * (last - first)

    count = round((top - low) / step)
    return linearly, tuple(Tick(linearly(low + i * step), f"{low + i * step:.4g}") for i in range(count + 1))


def _step(rough: float) -> float:
    """A round number that is not below a rough one: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))


def _columns(text: str) -> int:
    """How wide a text is, in Latin letters; those of most other scripts are twice as wide."""
    return sum(2 if ord(letter) > 0x1100 else 1 for letter in text)


def shortened(text: str) -> str:
    """A long name with its middle left out: the beginning and the end of a tensor's name say most."""
    return text if len(text) <= 38 else f"{text[:18]}…{text[-18:]}"
