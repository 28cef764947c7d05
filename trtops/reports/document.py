"""The content of a report without its appearance. It is stored in the run, so that the page can be drawn again."""

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
        label: Its full name.
        x: Its place on the horizontal axis; not used for bars.
        y: Its value.
        tone: The meaning of its colour.
    """

    label: str
    x: float = 0.0
    y: float
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True)
class Chart(Record):
    """A chart.

    Attributes:
        title: Its caption.
        form: ``points`` in a plane, or ``bars``, one below the other, each with its label.
        x: The horizontal axis with its unit; for bars, the meaning of their lengths.
        y: The vertical axis with its unit.
        points: The points or bars.
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
        title: Its heading; empty for none.
        text: Markdown; HTML and pictures in it are shown as text.
        chart: A chart below the text.
        table: A table below that.
        folded: Whether it is hidden until it is opened.
    """

    title: str = ""
    text: str = ""
    chart: Chart | None = None
    table: Table | None = None
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Document(Record):
    """The content of a report that only the op knows.

    Attributes:
        title: The work and its subject.
        verdict: ``good``, ``bad`` or ``error``; empty for none.
        headline: The outcome in a few words.
        why: The reasons if it is not good, one sentence each.
        sections: The deciding numbers, in order.
    """

    title: str
    verdict: str = ""
    headline: str = ""
    why: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
