"""What a report says, without how it looks: plain values, kept in the run so that the page can be drawn again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trtops.record import Record

Cell: TypeAlias = "str | float | None"
Tone: TypeAlias = Literal["good", "bad", "error", "plain"]


@dataclass(frozen=True, kw_only=True)
class Table(Record):
    """A table.

    Attributes:
        columns: Headings.
        rows: One cell per column; None is shown as a dash.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Point(Record):
    """One point of a chart.

    Attributes:
        label: What it is, in full.
        x: Its place along the horizontal axis; a chart of bars has none, and takes points in order.
        y: Its value.
        tone: What its colour says.
    """

    label: str
    x: float = 0.0
    y: float
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True)
class Chart(Record):
    """A chart.

    Attributes:
        title: What it shows.
        form: ``points`` in a plane, or ``bars``, one below the other, each with its label.
        x: What the horizontal axis is, with its unit; of bars, what their lengths are.
        y: What the vertical axis is, with its unit.
        points: What is drawn.
    """

    title: str
    form: Literal["points", "bars"]
    x: str
    y: str = ""
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class Section(Record):
    """One part of a report.

    Attributes:
        title: Its heading; none if empty.
        text: Markdown; HTML and pictures in it are shown as text.
        chart: A chart below the text.
        table: A table below that.
        folded: Whether it is folded away until somebody asks.
    """

    title: str = ""
    text: str = ""
    chart: Chart | None = None
    table: Table | None = None
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Document(Record):
    """What a report says beyond what its run says anyway.

    Attributes:
        title: What was done, and to what.
        verdict: ``good``, ``bad`` or ``error``; empty if there was none to reach.
        headline: The outcome in a few words.
        why: Why it is not good, one sentence each.
        sections: The numbers that decided, in order.
    """

    title: str
    verdict: str = ""
    headline: str = ""
    why: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
