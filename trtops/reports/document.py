"""The content of a report without its appearance, stored in the run for drawing the page again."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trtops.record import Record
from trtops.tables import table
from trtops.verdict import Verdict

Cell: TypeAlias = str | float | None
Tone: TypeAlias = Literal[Verdict, "plain"]


@dataclass(frozen=True, kw_only=True)
class Table(Record):
    """A table with one cell per column; None is shown as a dash.

    The ``pinned`` first rows stay above the others, and in columns of ``ratios``, values below 1 are better.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    pinned: int = 0
    ratios: tuple[int, ...] = ()

    def __str__(self) -> str:
        """The table in plain text."""
        return table(self.columns, self.rows)


@dataclass(frozen=True, kw_only=True)
class Point(Record):
    """One point or bar of a chart. The tone is the meaning of its colour; bars have no ``x``."""

    label: str
    x: float = 0.0
    y: float
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True)
class Chart(Record):
    """A chart: ``points`` in a plane, or ``bars``, one below the other, each with its label.

    ``x`` and ``y`` name the axes with their units. For bars, ``x`` is the meaning of their lengths. A ``frontier`` is a
    line through the points that no other one is left of and below.
    """

    title: str
    form: Literal["points", "bars"]
    x: str
    y: str = ""
    points: tuple[Point, ...]
    frontier: bool = False


@dataclass(frozen=True, kw_only=True)
class Section(Record):
    """One part of a report: Markdown, a chart and a table. A folded one is hidden until it is opened."""

    title: str = ""
    text: str = ""
    chart: Chart | None = None
    table: Table | None = None
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Document(Record):
    """The content of a report known only to the op: the outcome, the reasons for it, and the deciding numbers."""

    title: str
    verdict: str = ""
    headline: str = ""
    reasons: tuple[str, ...] = ()
    next: str = ""  # the command that usually comes next
    sections: tuple[Section, ...] = ()
