"""A run as one HTML file: it fetches nothing, and only its own script runs."""

import base64
import collections
import datetime
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trtops.extras import require
from trtops.record import sha256
from trtops.reports.document import Chart, Document, Section
from trtops.reports.sections import engine_place, facts_of, next_commands
from trtops.tracking.base import RunInfo
from trtops.verdict import VERDICTS

_TEMPLATES = Path(__file__).parent / "templates"
_MAX_BARS = 60
_SOURCES = sorted(path for path in Path(__file__).parent.rglob("*") if path.suffix in (".py", ".html", ".css", ".js"))
_TONES = {"good": "good", "bad": "bad", "error": "crashed or hung", "unproven": "unproven", "plain": "value"}


@functools.cache
def layout() -> str:
    """Return an id of the pages' layout: pages of one layout show the same data in the same way."""
    sources = b"".join(path.read_bytes() for path in _SOURCES)
    return sha256(sources + version("markdown-it-py").encode())[:16]


def page(
    document: Document,
    info: RunInfo | None,
    sections: Sequence[Section],
    pictures: Mapping[str, bytes | None],
    commands: Sequence[tuple[str, str]] = (),
) -> str:
    """The report of a run as the text of an HTML file, with pictures by their paths.

    Without a run, the page of a comparison, with its own next ``commands``.
    """
    # The page's policy allows the script with this digest and no other.
    require("jinja2", "markdown_it")
    from markupsafe import Markup

    script = (_TEMPLATES / "report.js").read_text("utf-8")
    text: str = _environment().get_template("report.html").render(
        document=document,
        layout=layout(),
        info=info,
        verdicts=VERDICTS,
        place=engine_place(info) if info else "",
        facts=facts_of(info) if info else collections.defaultdict(tuple),
        commands=list(next_commands(document, info.id)) if info else commands,
        sections=[*document.sections, *sections],
        pictures=[(path, picture_data) for path, data in pictures.items() if (picture_data := picture(data, path))],
        began=info and datetime.datetime.fromtimestamp(info.start_time, datetime.timezone.utc).strftime("%F %H:%M UTC"),
        style=Markup((_TEMPLATES / "report.css").read_text("utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
    )  # fmt: skip
    return text


def as_html(page: str) -> str:
    """Return a page of Markdown as HTML; HTML in it is shown as text."""
    from trtops.extras import require

    require("jinja2", "markdown_it")
    html: str = _environment().filters["markdown"](page)
    return html


def picture(data: bytes | None, name: str) -> str:
    """A picture as the source of an ``<img>``, safe from scripts and remote content; or empty."""
    if data is None:
        return ""
    kind = (
        "png" if name.endswith(".png") and data.startswith(b"\x89PNG") else "svg+xml" if name.endswith(".svg") else ""
    )
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}" if kind else ""


@functools.cache
def _environment() -> Any:
    import jinja2
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Names of tensors are in these texts: HTML in them is shown as text, and no picture is fetched.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["image", "autolink"])
    environment.filters |= {
        "markdown": lambda text: Markup(markdown.render(text)),
        "chart_view": _chart_view,
        # The ends of a tensor's name differ most.
        "short_name": lambda text: text if len(text) <= 38 else f"{text[:18]}…{text[-18:]}",
        "cell": lambda cell: f"{cell:.6g}" if isinstance(cell, float) else str(cell),
    }
    return environment


def _chart_view(chart: Chart) -> dict[str, Any]:
    """A chart's marks with places from 0 to 1 on both axes, and the ends of the axes.

    All finite points are drawn, or the largest bars; the others are counted as ``hidden``.
    """
    points = [point for point in chart.points if math.isfinite(point.y) and math.isfinite(point.x)]
    if chart.form == "bars":
        points = sorted(points, key=lambda point: -point.y)[:_MAX_BARS]
    positive = [point.y for point in points if point.y > 0]
    logarithmic = bool(positive) and max(positive) > 100 * min(positive)
    if logarithmic:
        # Half a decade below the smallest value, so that its bar can be seen.
        smallest = math.log10(min(positive)) - 0.5
        values = [math.log10(point.y) if point.y > 0 else smallest for point in points]
        ys, (low, high) = _places([smallest, *values])
        y_range = (f"{10**low:.2g}", f"{10**high:.2g}")
    else:
        ys, (low, high) = _places([0.0, *(point.y for point in points)])
        y_range = (f"{low:.4g}", f"{high:.4g}")
    xs, (left, right) = _places([point.x for point in points])
    marks = [
        {"x": x, "y": y, "label": p.label, "value": f"{p.y:.4g}", "tone": p.tone} for x, y, p in zip(xs, ys[1:], points)
    ]
    frontier: list[tuple[float, float]] = []
    for x, y in sorted(zip(xs, ys[1:])) if chart.frontier else ():
        if not frontier or y < frontier[-1][1]:
            frontier += [(x, frontier[-1][1]), (x, y)] if frontier else [(x, y)]
    return {
        "marks": marks,
        "frontier": frontier,
        "x_range": (f"{left:.4g}", f"{right:.4g}"),
        "y_range": y_range,
        "logarithmic": logarithmic,
        "legend": [(tone, text) for tone, text in _TONES.items() if any(point.tone == tone for point in points)],
        "hidden": len(chart.points) - len(points),
    }


def _places(values: Sequence[float]) -> tuple[list[float], tuple[float, float]]:
    """Values as shares of their range, and the range."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / ((high - low) or 1.0) for value in values], (low, high)
