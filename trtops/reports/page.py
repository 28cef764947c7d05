"""A run as one HTML file: it fetches nothing, and only its own script runs."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup

from trtops.reports.charts import chart_view, short_name
from trtops.reports.document import Document
from trtops.reports.facts import facts_of, time_text
from trtops.reports.run_view import RunView, stored_sections

_TEMPLATES = Path(__file__).parent / "templates"


def page(document: Document, view: RunView) -> str:
    """The report of a run as the text of an HTML file."""
    info = view.info
    script = (_TEMPLATES / "report.js").read_text("utf-8")
    return _environment().get_template("report.html").render(
        document=document,
        info=info,
        facts=facts_of(info, document.verdict),
        sections=[*document.sections, *stored_sections(view)],
        pictures=[(path, found) for path in view.pictures if (found := picture(view.read(path), path))],
        began=time_text(info.start_time),
        style=Markup((_TEMPLATES / "report.css").read_text("utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
    )  # fmt: skip


def picture(data: bytes | None, name: str) -> str:
    """A picture as the source of an ``<img>``, in which browsers run no script and fetch nothing; or empty."""
    if data is None:
        return ""
    kind = (
        "png" if name.endswith(".png") and data.startswith(b"\x89PNG") else "svg+xml" if name.endswith(".svg") else ""
    )
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}" if kind else ""


@functools.cache
def _environment() -> jinja2.Environment:
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
        "chart_view": chart_view,
        "short_name": short_name,
        "cell": lambda cell: f"{cell:.6g}" if isinstance(cell, float) else str(cell),
    }
    return environment
